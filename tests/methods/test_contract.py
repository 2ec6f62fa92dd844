"""Every registered method passes every check of the battery; methods that break a law are caught."""

import jax
import jax.numpy as jnp
import pytest

from jaxfl import methods
from jaxfl.methods import METHODS, Row, fedavg
from jaxfl.schema import describe, options_of, words_of
from jaxfl.testing import CHECKS

# method by method, so that the checks of one share what they compiled
PAIRS = [(name, check) for name in METHODS for check in CHECKS]


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{name}-{check.replace(' ', '_')}" for name, check in PAIRS])
def test_law(name, check):
    reason = CHECKS[check](METHODS[name])
    if reason:
        pytest.skip(reason)


WORDS = [
    pytest.param(row.factory, option, id=f"{name}-{option.name}")
    for name, row in METHODS.items()
    for option in options_of(row.factory).values()
    if words_of(option.hint)
]


@pytest.mark.parametrize(("factory", "option"), WORDS)
def test_other_words_are_refused_before_anything_else(factory, option):
    with pytest.raises(ValueError) as refused:
        factory(None, None, **{option.name: "nonsense"})
    assert str(refused.value).startswith(f'{option.name} must be {describe(option.hint)}, got "nonsense"')


@pytest.mark.parametrize("name", METHODS)
def test_no_option_of_text_is_free(name):
    """What takes a few words says which; only patterns of names of parameters are any text."""
    free = [option for option in options_of(METHODS[name].factory).values() if option.hint in (str, str | None)]
    assert free == []


def test_the_registry_is_the_one_list():
    assert set(METHODS) | {"METHODS", "Info", "Method", "Row"} == set(methods.__all__)
    assert all(getattr(methods, name) is row.factory for name, row in METHODS.items())


def after_round(change):
    """Returns what changes a method's round by changing its result: `change(state, info, cohort) -> state`."""

    def changed(method):
        def round(key, state, data, cohort):
            state, info = method.round(key, state, data, cohort)
            return change(state, info, cohort), info

        return method._replace(round=round)

    return changed


def plus(state, number):
    return state._replace(model=jax.tree.map(lambda leaf: leaf + number.astype(leaf.dtype), state.model))


def ignoring_the_mask(method):
    def round(key, state, data, cohort):
        return method.round(key, state, data, cohort.replace(mask=jnp.ones_like(cohort.mask)))

    return method._replace(round=round)


def serving_by_id(method):
    def client_params(state, ids):
        return jax.tree.map(lambda leaf: leaf * (1 + ids).astype(leaf.dtype)[:, None, None], {"w": jnp.ones((8, 1, 1))})

    return method._replace(client_params=client_params)


BROKEN = {
    "argument names": lambda method: method._replace(client_params=lambda s, i: method.client_params(s, i)),
    "info": after_round(lambda state, info, cohort: state._replace(cluster=info.cluster)),
    "stable state": after_round(lambda state, info, cohort: state._replace(round=state.round.astype(jnp.float32))),
    "chunks": after_round(lambda state, info, cohort: plus(state, jnp.float32(cohort.plan.chunk or 0))),
    "padding clients": ignoring_the_mask,
    "nobody": after_round(lambda state, info, cohort: plus(state, ~cohort.mask.any())),
    "cohort order": after_round(lambda state, info, cohort: plus(state, info.loss[0])),
    "sick client": after_round(lambda state, info, cohort: plus(state, 0 * info.loss.sum())),
    "empty client": after_round(lambda state, info, cohort: plus(state, cohort.mask.sum())),
    "served models": serving_by_id,
    "assign": lambda method: method._replace(
        assign=lambda key, state, data, cohort: state._replace(round=state.round + 1)
    ),
    "loss falls": after_round(lambda state, info, cohort: jax.tree.map(jnp.zeros_like, state)),
    "planted clusters": after_round(lambda state, info, cohort: state),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_caught(law):
    def factory(task, optimizer, *, local_epochs=5, batch_size=None):
        return BROKEN[law](fedavg(task, optimizer, local_epochs=local_epochs, batch_size=batch_size))

    with pytest.raises(AssertionError):
        CHECKS[law](Row(factory, "FedAvg, broken", "none", finds_clusters=True))
