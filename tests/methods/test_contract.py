"""Every registered method passes every check of the battery; methods that break a law are caught."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.experimental import io_callback

import jaxfl
from jaxfl import methods
from jaxfl.client.steps import Epochs
from jaxfl.methods import METHODS, Row
from jaxfl.methods.averaging import AveragingState
from jaxfl.methods.base import keep_clusters, write_clusters
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.schema import describe, function_options, literal_values
from jaxfl.testing import CHECKS
from jaxfl.testing.small import case_options, linear_task
from tests.messages import mentions

# Of different kinds: one model, a model of each client, a split model, given clusters, splits, and merges.
CORE = ("fedavg", "ditto", "fedper", "ifca", "cfl", "stocfl")
TRACED = ("argument names", "stable state", "traceable numbers", "local steps")  # these compile nothing
# These compile programs of their own. All others share one program of a round.
DEAR = (
    "chunks", "devices", "padding rows", "padding clients", "rows per client", "seed", "cuts", "growth", "server sees",
    "newcomers",
)  # fmt: skip


def turns(name, check):
    """Returns the marks of a pair: the dear checks of a week are of methods whose other checks run as well.

    Checks compare programs of one method, so those of most methods are compiled quickly.
    """
    if name in CORE:
        return [pytest.mark.rotating("name", weeks=len(CORE))] if check == "server sees" else []
    if check in TRACED:
        return []
    return [pytest.mark.rotating("name", weeks=16 if check in DEAR else 4), pytest.mark.quick]


# Method by method, so that the checks of one share what they compiled.
PAIRS = [
    pytest.param(name, check, id=f"{name}-{check.replace(' ', '_')}", marks=turns(name, check))
    for name in METHODS
    for check in CHECKS
]


def test_the_grid_has_its_names():
    assert set(CORE) <= set(METHODS) and {*TRACED, *DEAR} <= set(CHECKS)


@pytest.mark.parametrize(("name", "check"), PAIRS)
def test_law(name, check):
    reason = CHECKS[check](METHODS[name])
    if reason:
        pytest.skip(reason)


WORDS = [
    pytest.param(row.factory, option, id=f"{name}-{option.name}")
    for name, row in METHODS.items()
    for option in function_options(row.factory).values()
    if literal_values(option.hint)
]


@pytest.mark.parametrize(("factory", "option"), WORDS)
def test_other_words_are_refused_before_anything_else(factory, option):
    with pytest.raises(ValueError, match=mentions(option.name, describe(option.hint), '"nonsense"')):
        factory(None, None, **{option.name: "nonsense"})


@pytest.mark.parametrize("name", METHODS)
def test_no_option_of_text_is_free(name):
    """What takes a few words says which; only patterns of names of parameters are any text."""
    free = [option for option in function_options(METHODS[name].factory).values() if option.hint in (str, str | None)]
    assert free == []


@pytest.mark.parametrize("name", METHODS)
def test_whoever_trains_in_epochs_takes_steps(name):
    options = function_options(METHODS[name].factory)
    assert "local_epochs" not in options or options["local_epochs"].hint == Epochs


@pytest.mark.parametrize("name", METHODS)
def test_a_method_declares_what_its_row_does(name):
    row = METHODS[name]
    method = row.factory(linear_task(), optax.sgd(0.3), **case_options(row))
    assert method.server_sees == row.server_sees == row.seen(row.small).level != "unknown"
    assert all(set(seen.options) <= set(row.options) for seen in row.factory.seen)
    assert row.newcomer({}) is not None, "Row.newcomers must declare what newcomers need"
    assert all(set(one.options) <= set(row.options) for one in row.newcomers)
    assert method.join is not None or not any(one.joins for one in row.newcomers)


# Options with which newcomers need more, or less, than with the default ones.
NEWCOMERS = {
    "ditto-initial": ("ditto", {"newcomers": "initial"}, "nothing"),
    "fedbabu-0": ("fedbabu", {"finetune_epochs": 0}, "nothing"),
    "fedem-everybody": ("fedem", {"estimate": "everybody"}, "labels"),
    "fedpac-mean": ("fedpac", {"newcomers": "mean"}, "nothing"),
    "fedsoft-cluster": ("fedsoft", {"served": "cluster"}, "labels"),
    "fedsoft-everybody": ("fedsoft", {"estimate": "everybody"}, "labels"),
    "fedsoft-initial": ("fedsoft", {"preset": "official", "newcomers": "initial"}, "nothing"),
    "pacfl-official": ("pacfl", {"preset": "official", "threshold": 20.0}, "labels"),
    "stocfl-official": ("stocfl", {"preset": "official"}, "labels"),
}


@pytest.mark.rotating(weeks=8)
@pytest.mark.parametrize("case", NEWCOMERS)
def test_options_change_what_newcomers_need(case):
    name, options, needs = NEWCOMERS[case]
    row = METHODS[name]._replace(small=METHODS[name].small | options)
    assert row.newcomer(row.small).needs == needs
    CHECKS["newcomers"](row)


def test_a_check_tells_what_newcomers_need_where_it_is_not_declared():
    assert "needs labels" in CHECKS["newcomers"](METHODS["ifca"]._replace(newcomers=()))


# Options with which a server sees more, or no more, than with the default ones.
SEEN = {
    "ifca-balanced": ("ifca", {"start": "balanced"}, "numbers"),
    "ifca-kmeans++": ("ifca", {"start": "kmeans++", "warmup_rounds": 1}, "updates"),
    "ifca-groups": ("ifca", {"start": "groups", "warmup_rounds": 1}, "sums"),
    "feddbe-cohort": ("feddbe", {"start": "cohort"}, "sums"),
    "fedem-cohort": ("fedem", {"mean_over": "cohort", "weighting": "responsibilities"}, "sums"),
    "fedem-official": ("fedem", {"preset": "official", "mean_over": None, "weighting": "responsibilities"}, "numbers"),
    "stocfl-official": ("stocfl", {"preset": "official"}, "updates"),
    "wecfl-official": ("wecfl", {"preset": "official"}, "updates"),
}


@pytest.mark.rotating(weeks=8)
@pytest.mark.parametrize("case", SEEN)
def test_options_change_what_the_server_sees(case):
    name, options, level = SEEN[case]
    row = METHODS[name]._replace(small=METHODS[name].small | options)
    assert row.seen(row.small).level == level
    CHECKS["server sees"](row)


def test_a_method_around_another_one_declares_what_that_one_does():
    task, optimizer = linear_task(), optax.sgd(0.3)
    for solver, level in ((methods.ifca(task, optimizer), "sums"), (methods.fesem(task, optimizer), "updates")):
        assert methods.ditto(task, optimizer, solver=solver).server_sees == level
    alone = methods.fedavg(task, optimizer)._replace(server_sees=None)
    assert methods.ditto(task, optimizer, solver=alone).server_sees == "unknown"
    assert methods.fedavg(task, optimizer, update="chain").server_sees == "updates"


def test_a_view_may_depend_on_a_number_that_programs_take_as_an_argument(monkeypatch):
    """Inside their traces it is not known, and nobody asks."""
    row = METHODS["fedprox"]
    seen = Seen("sums", "the sum"), Seen("updates", "each model", options={"proximal_weight": 0.5})
    monkeypatch.setitem(METHODS, "fedprox", row._replace(factory=server_sees(*seen)(inspect.unwrap(row.factory))))
    for weight, level in ((0.5, "updates"), (0.1, "sums")):
        small = {"num_clients": 4, "rows_per_client": 20, "model": "logistic", "proximal_weight": weight}
        result = jaxfl.run_named("fedprox", "iid-digits", rounds=1, cohort=2, **small)
        assert result.method.server_sees == level


def test_a_check_tells_what_an_undeclared_server_sees():
    def factory(task, optimizer):
        return METHODS["ifca"].factory(task, optimizer, num_clusters=2)._replace(server_sees=None)

    assert "sums alone" in CHECKS["server sees"](Row(factory, "", ""))


def test_the_registry_is_the_one_list():
    assert set(METHODS) | {"KINDS", "METHODS", "Info", "Method", "Row"} == set(methods.__all__)
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
    return state._replace(model=jax.tree.map(lambda leaf: leaf + jnp.asarray(number, leaf.dtype), state.model))


def ignoring_the_mask(method):
    def round(key, state, data, cohort):
        return method.round(key, state, data, cohort.replace(mask=jnp.ones_like(cohort.mask)))

    return method._replace(round=round)


def counting_padded_rows(method):
    def round(key, state, data, cohort):
        state, info = method.round(key, state, data, cohort)
        return plus(state, data.train.max_size / 10), info

    return method._replace(round=round)


def serving_by_id(method):
    def client_params(state, ids):
        return jax.tree.map(lambda leaf: leaf * (1 + ids).astype(leaf.dtype)[:, None, None], {"w": jnp.ones((8, 1, 1))})

    return method._replace(client_params=client_params)


built = itertools.count()


def unlike_the_last_one(method):
    """Every method that is made is another one: what a global generator of random numbers does."""
    number = next(built)
    return after_round(lambda state, info, cohort: plus(state, number))(method)


@struct.dataclass
class Remembering:
    """A state with something beside its arrays, which no checkpoint keeps."""

    own: AveragingState
    rounds: int = struct.field(pytree_node=False, default=0)

    @property
    def cluster(self):
        return self.own.cluster


def remembering(method):
    def init(key, data):
        return Remembering(method.init(key, data))

    def round(key, state, data, cohort):
        own, info = method.round(key, state.own, data, cohort)
        return Remembering(plus(own, state.rounds), state.rounds + 1), info

    return method._replace(init=init, round=round)


def changed_by_a_look(method):
    """Who is looked at learns: the round reads how often the evaluation has run."""
    looks = [0]

    def looked(cluster):
        looks[0] += 1
        return cluster

    def assign(key, state, data, cohort):
        shape = jax.ShapeDtypeStruct(state.cluster.shape, state.cluster.dtype)
        return state._replace(cluster=io_callback(looked, shape, state.cluster))

    def round(key, state, data, cohort):
        state, info = method.round(key, state, data, cohort)
        seen = io_callback(lambda number: np.float32(looks[0]), jax.ShapeDtypeStruct((), np.float32), state.round)
        return plus(state, seen), info

    return method._replace(assign=assign, round=round)


def growing_forgetfully(method):
    def grow(state):
        grown = method.grow(state)
        return grown._replace(models=jax.tree.map(jnp.zeros_like, grown.models))

    return method._replace(grow=grow)


def reading_everybody(method):
    def round(key, state, data, cohort):
        state, info = method.round(key, state, data, cohort)
        return plus(state, data.inputs.sum()), info

    return method._replace(round=round)


def adapting_to_everybody(method):
    def adapt(key, state, data, client, model):
        return jax.tree.map(lambda leaf: leaf + data.inputs.sum(), model)

    return method._replace(adapt=adapt)


def reading_rows_by_itself(method):
    """Reaches into the state's rows where they are, and not by `tree.take`."""

    def client_params(state, ids):
        return jax.tree.map(lambda leaf: leaf[ids], state.models)

    return method._replace(client_params=client_params)


BROKEN = {
    "argument names": lambda method: method._replace(client_params=lambda s, i: method.client_params(s, i)),
    "info": after_round(lambda state, info, cohort: state._replace(cluster=info.cluster[1:])),
    "stable state": after_round(lambda state, info, cohort: state._replace(round=state.round.astype(jnp.float32))),
    "traceable numbers": after_round(lambda state, info, cohort: plus(state, float(info.loss.sum()))),
    "local steps": unlike_the_last_one,
    "chunks": after_round(lambda state, info, cohort: plus(state, cohort.plan.chunk or 0)),
    "devices": after_round(lambda state, info, cohort: plus(state, cohort.plan.mesh.size if cohort.plan.mesh else 0)),
    "padding clients": ignoring_the_mask,
    "padding rows": counting_padded_rows,
    "permuted clients": after_round(
        lambda state, info, cohort: plus(state, cohort.ids.astype(jnp.float32) @ info.loss)
    ),
    "nobody": after_round(lambda state, info, cohort: plus(state, ~cohort.mask.any())),
    "cohort order": after_round(lambda state, info, cohort: plus(state, info.loss[0])),
    "seed": unlike_the_last_one,
    "checkpoint": remembering,
    "sick client": after_round(lambda state, info, cohort: plus(state, 0 * info.loss.sum())),
    "empty client": after_round(lambda state, info, cohort: plus(state, cohort.mask.sum())),
    "served models": serving_by_id,
    "rows of others": reading_everybody,
    "rows per client": reading_rows_by_itself,
    "adapt": adapting_to_everybody,
    "newcomers": adapting_to_everybody,
    "assign": lambda method: method._replace(
        assign=lambda key, state, data, cohort: state._replace(round=state.round + 1)
    ),
    "held out clients": lambda method: method._replace(assign=keep_clusters),
    "loss falls": after_round(lambda state, info, cohort: jax.tree.map(jnp.zeros_like, state)),
    "planted clusters": after_round(lambda state, info, cohort: state),
    "server sees": after_round(lambda state, info, cohort: plus(state, info.loss.sum())),
    "cuts": changed_by_a_look,
    "growth": growing_forgetfully,
}


def counting_the_others(method):
    def assign(key, state, data, cohort):
        clients = cohort.mask.sum(dtype=jnp.int32)
        return state._replace(cluster=write_clusters(state.cluster, cohort, jnp.full(cohort.ids.shape, clients)))

    return method._replace(assign=assign)


def forgetting_to_write(method):
    def round(key, state, data, cohort):
        state, info = method.round(key, state, data, cohort)
        return state, info._replace(num_clusters=jnp.int32(2))

    return method._replace(round=round)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (counting_the_others, ("client 0", 1, 8)),
        (forgetting_to_write, ("num_clusters=2", "state.cluster")),
    ],
)
def test_clusters_are_each_client_s_own_and_written(broken, words):
    def factory(task, optimizer):
        return broken(METHODS["fedavg"].factory(task, optimizer))

    with pytest.raises(AssertionError, match=mentions(*words)):
        CHECKS["assign"](Row(factory, "broken", "none"))


def test_every_law_has_a_method_that_breaks_it():
    assert set(BROKEN) == set(CHECKS)


@pytest.mark.rotating(weeks=3)
@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_caught(law):
    # FedAvg has no slots to double, no clusters to find, and no rows of its clients
    healthy = METHODS[
        {"growth": "cfl", "held out clients": "ifca", "rows per client": "local", "adapt": "fedavg_ft"}.get(
            law, "fedavg"
        )
    ]

    def factory(task, optimizer, *, local_epochs: Epochs = 5, batch_size=None):
        options = {"local_epochs": local_epochs, "batch_size": batch_size, **healthy.small}
        return BROKEN[law](healthy.factory(task, optimizer, **options))

    if law == "devices" and len(jax.devices()) == 1:
        pytest.skip("it needs two devices")
    with pytest.raises(AssertionError):
        CHECKS[law](Row(factory, f"{law}, broken", "none", finds_clusters=True, newcomers=healthy.newcomers))
