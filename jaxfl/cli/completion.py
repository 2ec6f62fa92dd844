"""What a shell offers for a word that is begun: names of methods and data, and what `--set` knows of both.

`jaxfl --install-completion` tells the shell to ask. Nothing is offered where something is unknown: a half-written line
is no error.

>>> [name for name, _ in complete_method("fedp")]
['fedprox', 'fedper']
>>> [name for name, _ in complete_method_list("ifca,cf")]
['ifca,cfl']
>>> complete_data("rotated-mn")
['rotated-mnist']
"""

import contextlib

import typer

Suggestions = list[tuple[str, str]]  # a word, and what a shell may show beside it


def complete_method(incomplete: str) -> Suggestions:
    """Returns the methods that a word may become."""
    from jaxfl.settings import methods

    return [(name, row.summary) for name, row in methods.rows().items() if name.startswith(incomplete)]


def complete_method_list(incomplete: str) -> Suggestions:
    """Returns what the last name of a list may become."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [(f"{before}{comma}{name}", line) for name, line in complete_method(last) if name not in taken]


def complete_data(incomplete: str) -> list[str]:
    """Returns the data sets that a word may become."""
    from jaxfl.cli.data import dataset_names

    return [name for name in dataset_names() if name.startswith(incomplete)]


def complete_data_or_source(incomplete: str) -> list[str]:
    """Returns the data sets and sources that a word may become."""
    from jaxfl.data import sources

    known = (name for name in sources.names() if name.startswith(incomplete))
    return list(dict.fromkeys([*known, *complete_data(incomplete)]))  # some are both


def complete_setting(context: typer.Context, incomplete: str) -> Suggestions:
    """Returns the options that `--set` takes with the method, data, model and optimiser that the line names already.

    An option of a few words is offered with each of them.
    """
    from jaxfl.data import catalog
    from jaxfl.models.networks import MODELS
    from jaxfl.schema import Option, literal_values
    from jaxfl.settings import options
    from jaxfl.settings.optimizers import OPTIMIZERS

    given, found, begun = context.params, list[Option](), list[tuple[str, str]]()
    first = next(iter(context.args), "")  # a line that ends in `--set` is not read to its end
    with contextlib.suppress(ValueError, ImportError, OSError):
        data = given.get("data") or given.get("name") or first
        if "method" in given:
            wanted, method = options.split(given.get("items") or ()), given.get("method") or first
            model = wanted.get("model", catalog.dataset(data).model[0])
            found = options.known(method, data, model, wanted.get("optimizer", "sgd"))
            begun = [*((f"model={name}", "") for name in MODELS), *((f"optimizer={name}", "") for name in OPTIMIZERS)]
        else:
            found = list(catalog.known_options(data).values())
    for one in found:
        words = literal_values(one.hint) or [""]
        begun += [(f"{one.name}={str(word).lower()}", one.line) for word in words]
    return [(word, line) for word, line in begun if word.startswith(incomplete)]
