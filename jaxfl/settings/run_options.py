"""The options of every run, for any method, data, model and optimiser, and the learning-rate schedules."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp

from jaxfl import sampling
from jaxfl.clock import AGGREGATION, ClientClock
from jaxfl.clock.asynchronous.rule import Kind
from jaxfl.clock.policies import Late
from jaxfl.edges import EdgeServers
from jaxfl.models.precision import Compute
from jaxfl.schema import Option, is_known
from jaxfl.settings import wire_options
from jaxfl.typing import Array

ScheduleName = Literal["constant", "cosine", "step", "exponential", "warmup"]
# Default of `factor`: the end of the fall within `rounds`, or the start of the warm-up.
SCHEDULE_FACTORS = {"cosine": 0.0, "step": 0.1, "exponential": 0.1, "warmup": 0.0}


def learning_rate_schedule(
    name: ScheduleName, rounds: int | Sequence[int] | None, factor: float | None
) -> Callable[[Array], Any] | None:
    """Returns a schedule for `jaxfl.scheduled`; None for a constant learning rate.

    Args:
        name: `cosine` falls from 1 to `factor` along half a wave, and is constant after it; `step` multiplies by
            `factor` after every `rounds`, or after each of them if there are several; `exponential` multiplies by
            `factor` over `rounds`, evenly in every round; `warmup` rises from `factor` in equal steps, from the first
            round on, and is 1 from the last of `rounds` on.
        rounds: length of the fall, the rise or a step; or of `step` the numbers of rounds before each step.
        factor: None is 0.1 for `step` and `exponential`, and 0 for the others.

    Raises:
        ValueError: a number is out of range, or given without a schedule.

    >>> import numpy as np
    >>> numbers, names = np.arange(6, dtype=np.float32), ("cosine", "step", "warmup")
    >>> {name: np.asarray(learning_rate_schedule(name, 4, None)(numbers), float).round(2).tolist() for name in names}
    {'cosine': [1.0, 0.85, 0.5, 0.15, 0.0, 0.0], 'step': [1.0, 1.0, 1.0, 1.0, 0.1, 0.1],
     'warmup': [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]}
    """
    if name == "constant":
        for option, value in {"schedule_rounds": rounds, "schedule_factor": factor}.items():
            if value is not None:
                raise ValueError(f"{option} needs a schedule, got {value} without it; add --set schedule=cosine.")
        return None
    if rounds is None:
        raise ValueError(f"schedule_rounds must be given with schedule={name}, got none; give a number such as 100.")
    steps = [rounds] if isinstance(rounds, int) else list(rounds)
    if not steps or min(steps) < 1 or steps != sorted(set(steps)):
        raise ValueError(f"schedule_rounds must be at least 1, several in increasing order, got {rounds}.")
    if len(steps) > 1 and name != "step":
        raise ValueError(f"schedule_rounds must be one number with schedule={name}, got {rounds}; take step.")
    end = SCHEDULE_FACTORS[name] if factor is None else factor
    if is_known(end) and (not 0 <= end <= 1 or (end == 0 and name == "exponential")):
        raise ValueError(
            f"schedule_factor must be from 0 to 1, and above 0 for schedule=exponential, got {end} for {name}; "
            f"{SCHEDULE_FACTORS[name]} is usual."
        )
    if not isinstance(rounds, int):
        return lambda number: (
            jnp.float32(end) ** jnp.stack([number >= step for step in steps]).sum().astype(jnp.float32)
        )
    shapes: dict[str, Callable[[Array], Any]] = {
        "cosine": lambda past: end + (1 - end) * (1 + jnp.cos(jnp.pi * jnp.minimum(past, 1))) / 2,
        # half a round added: a compiled program multiplies with 1 / rounds, and 41 times 1 / 41 is below 1
        "step": lambda past: jnp.float32(end) ** jnp.floor(past + 0.5 / rounds),
        "exponential": lambda past: jnp.float32(end) ** past,
        "warmup": lambda past: end + (1 - end) * jnp.minimum(past + 1 / rounds, 1),
    }
    return lambda number: shapes[name](number / rounds)


def check_local_steps(steps: int | None, method: str, given: Mapping[str, Any], options: Iterable[Option]) -> None:
    """Raises ValueError if a number of local steps is out of range, or the clients' training has another length.

    Args:
        steps: the option; None has none.
        method: its name.
        given: options of the method that are given.
        options: all that apply.
    """
    if steps is None:
        return
    if steps < 1:
        raise ValueError(f"local_steps must be at least 1, got {steps}; none makes local_epochs.")
    if not any((option.owner, option.name) == ("method", "local_epochs") for option in options):
        raise ValueError(
            f"local_steps needs a method with local_epochs, got {steps} for {method}, whose clients send one gradient; "
            "leave it out."
        )
    if "local_epochs" in given:
        raise ValueError(
            f"local_steps takes the place of local_epochs, got {steps} and local_epochs={given['local_epochs']}; leave "
            "one out."
        )


def client_clock(run: Mapping[str, Any]) -> ClientClock | None:
    """Returns the clock of a run's options; None without one.

    Raises:
        ValueError: a number is out of range, or needs a clock.

    >>> client_clock({"clock": "tiers", "clock_by": "group", "deadline": "p80"}).by
    'group'
    """
    names = {"clock_sigma": "sigma", "clock_by": "by"} | {name: name for name in POLICY}
    if run.get("clock") is None:
        for name, field in names.items():
            if run.get(name, usual := getattr(ClientClock, field)) != usual:
                raise ValueError(f"{name} needs a clock, got {run[name]} without it; add --set clock=lognormal.")
        return None
    return ClientClock(run["clock"], **{field: run[name] for name, field in names.items() if name in run})


def edge_servers(run: Mapping[str, Any]) -> EdgeServers | None:
    """Returns the edge servers of a run's options; None without any.

    Raises:
        ValueError: a number is out of range, or needs edges.

    >>> edge_servers({"edges": "group", "edge_rounds": 5}).rounds
    5
    """
    names = {"edge_rounds": "rounds", "edge_up": "up", "edge_down": "down"}
    given = {field: run[name] for name, field in names.items() if name in run}
    if run.get("edges") is not None:
        return EdgeServers(run["edges"], **given)
    for name, field in names.items():
        if given.get(field, usual := getattr(EdgeServers, field)) != usual:
            raise ValueError(f"{name} needs edges, got {run[name]} without them; add --set edges=4.")
    return None


# Options of `ClientClock` under their own names.
POLICY = ("over_select", "deadline", "late", "min_reports", "asynchronous", *AGGREGATION)


# `dropouts`, `sampler` and `availability` are of sampling, see `jaxfl.sampling`; for `finetune` see `jaxfl.FineTune`.
RUN = (
    Option(
        "chunk",
        "auto",
        int | None | Literal["auto"],
        "clients trained at the same time on each device; auto fits the device, none takes the whole cohort",
    ),
    Option("devices", None, int | None | Literal["all"], "devices that share a round; none takes all GPUs, or cores"),
    Option("dropouts", 0.0, float, "share of the sampled clients that fail", traceable=True),
    Option(
        "sampler",
        "uniform",
        Literal["uniform", "poisson"],
        "cohorts of the same size, or each client by itself with the probability cohort / clients, see jaxfl.sampling",
    ),
    Option("availability", "always", sampling.Pattern, "pattern of the rounds in which a client can be sampled"),
    Option("availability_period", 24.0, float, "length of a day in rounds, for availability=diurnal"),
    Option(
        "fast_forms",
        True,
        bool,
        "whether convolutions, poolings and products are rewritten in forms that are fast for many clients",
    ),
    Option("compute", "float32", Compute, "number type of the network's layers; parameters and losses are float32"),
    Option("task", "auto", str, "task; auto is that of the data's labels, FILE.py:NAME is a function of yours"),
    Option(
        "class_weights",
        None,
        Literal["balanced"] | tuple[float, ...] | None,
        "factors of the losses by class, 1,2,5 for three classes, or balanced by their training rows, see "
        "jaxfl.classification",
    ),
    Option(
        "local_steps",
        None,
        int | None,
        "steps of each client in a round, in place of local_epochs, see jaxfl.Steps; none makes local_epochs",
    ),
    Option(
        "test_rows",
        None,
        int | None,
        "largest number of rows tested for each client before the last round; none tests all rows",
    ),
    Option(
        "eval_clients",
        None,
        int | None,
        "number of clients that are tested; none tests all clients, or 10,000 of them if there are more",
    ),
    Option(
        "metrics",
        None,
        str | tuple[str, ...] | None,
        "auc, per_class: optional metrics of classes, see jaxfl.with_metrics",
    ),
    Option(
        "record_vectors",
        False,
        bool,
        "whether records have the lists of numbers that a method says of a round, and the clients of its cohort",
    ),
    Option(
        "test_sets",
        None,
        str | tuple[str, ...] | None,
        "shared, concept: test sets of all clients on which served models are tested, too, see jaxfl.run",
    ),
    Option(
        "clients_history",
        False,
        bool,
        "whether the metrics of every client are kept at every evaluation, in clients-history.parquet",
    ),
    Option(
        "resident",
        "auto",
        bool | Literal["auto"],
        "whether the rows and models of all clients are in device memory; otherwise those of each round are sent",
    ),
    Option(
        "finetune",
        None,
        int | None,
        "epochs that every client trains the served model on its own training rows before a second test, with the "
        "run's optimiser and batch size: finetuned_micro_accuracy and so on",
    ),
    Option(
        "finetune_batch_size",
        "local",
        int | None | Literal["local"],
        "batch size of fine-tuning; local is that of the method, none takes all rows at once",
    ),
    Option(
        "finetune_pull",
        0.0,
        float,
        "mu, the proximal pull of fine-tuning to the served model; 0 has none",
        traceable=True,
    ),
    Option(
        "finetune_layers",
        "all",
        str | tuple[str, ...],
        "what fine-tuning trains: all, the head (see head), the body (the other layers), or patterns of parameters' "
        "names",
    ),
    Option("schedule", "constant", ScheduleName, "schedule of the clients' learning rate over the rounds"),
    Option(
        "schedule_rounds",
        None,
        int | tuple[int, ...] | None,
        "rounds of the schedule's fall or rise, or between two steps; several are those before each step",
    ),
    Option(
        "schedule_factor",
        None,
        float | None,
        "learning-rate factor at the end of the schedule, or at the warm-up's start",
        traceable=True,
    ),
    Option(
        "init",
        "network",
        Literal["network", "pytorch"],
        "start of the models: drawn by the network's own code, or as PyTorch's layers do by default",
    ),
    Option(
        "augment",
        None,
        str | tuple[str, ...] | None,
        "flip,crop4: training images are flipped and shifted at random, drawn anew in each step, see jaxfl.augmented",
    ),
    Option(
        "head",
        None,
        str | None,
        "layer that is the network's head, by name, which personalised methods keep or train alone; none is the layer "
        "that the network creates last",
    ),
    Option(
        "clock",
        None,
        str | None,
        "equal, lognormal, tiers, FILE.csv, or FILE.parquet with a trace: the clients' devices, by which a run has "
        "simulated seconds, see jaxfl.clock; none has no clock",
    ),
    Option("clock_sigma", 1.0, float, "spread of the devices with clock=lognormal"),
    Option("clock_by", None, Literal["group"] | None, "group: with clock=tiers, each true group has a tier in turn"),
    Option(
        "over_select",
        1.0,
        float,
        "clients that are asked in a round, as a multiple of the cohort: the first to report are aggregated; needs a "
        "clock",
    ),
    Option(
        "deadline",
        None,
        float | str | None,
        "simulated seconds after which a round ends, or p80, when 80 percent of the clients have reported; none waits "
        "for all",
    ),
    Option("late", "drop", Late, "whether clients behind the deadline are dropped, or send the whole steps that fit"),
    Option("min_reports", 1, int, "fewest clients of a round, for which it waits beyond the deadline"),
    Option(
        "asynchronous",
        None,
        Kind | None,
        "fedbuff or fedasync: the server steps when some clients have arrived, and the cohort is the number of clients "
        "that work at a time; needs a clock",
    ),
    Option(
        "buffer",
        None,
        int | None,
        "clients that arrive in an asynchronous round; none is 10 with fedbuff, or the cohort, and 1 with fedasync",
    ),
    Option(
        "staleness",
        "polynomial",
        str,
        "how updates count that are late: constant, polynomial:B or hinge:B,C, see jaxfl.clock.asynchronous.rule",
    ),
    Option("mixing", 0.6, float, "weight of a model that arrives with asynchronous=fedasync"),
    Option("max_staleness", None, int | None, "rounds after which a client in flight is dropped; none drops nobody"),
    Option(
        "cluster_buffer",
        None,
        int | None,
        "updates for which the model of a cluster waits; none is an equal share of the buffer",
    ),
    Option(
        "edges",
        None,
        int | str | None,
        "edge servers between clients and cloud: their number, group for one of each true group, or FILE.csv, see "
        "jaxfl.edges; none has one server",
    ),
    Option("edge_rounds", 1, int, "rounds of each edge server between two averages in the cloud"),
    Option("edge_up", 1e8, float, "bits a second from an edge server to the cloud, with a clock"),
    Option("edge_down", 1e8, float, "bits a second from the cloud to an edge server, with a clock"),
    Option("weights", None, str | None, "FILE.safetensors with the initial model, see jaxfl.start_from"),
    *wire_options.OPTIONS,
)
