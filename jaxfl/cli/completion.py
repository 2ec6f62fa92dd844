"""Shell completion: names of methods and data, and the options of `--set`.

`jaxfl --install-completion` installs it. Where a name on the line is unknown, nothing is suggested and no error is
raised.

>>> [name for name, _ in complete_method("fese")]
['fesem', 'fesem_ma', 'fesem_cam']
>>> [name for name, _ in complete_method_list("ifca,cf")]
['ifca,cfl', 'ifca,cfl_gp']
>>> complete_data("rotated-mn")
['rotated-mnist']
"""

import contextlib

import typer

Suggestions = list[tuple[str, str]]  # a word, and the description that some shells show


def complete_method(incomplete: str) -> Suggestions:
    """Returns the methods whose names begin with a word, and their summaries."""
    from jaxfl.settings import methods

    return [(name, row.summary) for name, row in methods.rows().items() if name.startswith(incomplete)]


def complete_method_list(incomplete: str) -> Suggestions:
    """Returns the completions of the last name in a comma-separated list of methods."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [(f"{before}{comma}{name}", line) for name, line in complete_method(last) if name not in taken]


def complete_data(incomplete: str) -> list[str]:
    """Returns the data sets whose names begin with a word."""
    from jaxfl.cli.data import dataset_names

    return [name for name in dataset_names() if name.startswith(incomplete)]


def complete_protocol(incomplete: str) -> list[str]:
    """Returns the protocols whose names begin with a word, and the word `list`."""
    from jaxfl import protocols

    return [name for name in ["list", *protocols.names()] if name.startswith(incomplete)]


def complete_data_or_source(incomplete: str) -> list[str]:
    """Returns the data sets and sources whose names begin with a word."""
    from jaxfl.data import sources

    known = (name for name in sources.names() if name.startswith(incomplete))
    return list(dict.fromkeys([*known, *complete_data(incomplete)]))  # some are both


def complete_setting(context: typer.Context, incomplete: str) -> Suggestions:
    """Returns the options of `--set` for the method, data, model and optimiser that the line names already.

    An option that takes one of a few words is suggested with each of them.
    """
    from jaxfl.models.networks import MODELS
    from jaxfl.schema import Option, literal_values
    from jaxfl.settings import federations, options
    from jaxfl.settings.optimizers import OPTIMIZERS

    given, found, begun = context.params, list[Option](), list[tuple[str, str]]()
    first = next(iter(context.args), "")  # a line that ends in `--set` is not read to its end
    with contextlib.suppress(ValueError, ImportError, OSError):
        data = given.get("data") or given.get("name") or first
        if "method" in given:
            wanted, method = options.split_items(given.get("items") or ()), given.get("method") or first
            model, task = wanted.get("model", federations.dataset(data).model[0]), wanted.get("task", "auto")
            optimizers = wanted.get("optimizer", "sgd"), wanted.get("server_optimizer")
            found = options.applicable_options(method, data, model, *optimizers, task=task)
            begun = [*((f"model={name}", "") for name in MODELS), *((f"optimizer={name}", "") for name in OPTIMIZERS)]
        else:
            found = list(federations.known_options(data).values())
    for one in found:
        words = literal_values(one.hint) or [""]
        begun += [(f"{one.name}={str(word).lower()}", one.line) for word in words]
    return [(word, line) for word, line in begun if word.startswith(incomplete)]
