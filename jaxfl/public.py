"""Public names of the package, as `jaxfl.NAME`."""

from importlib.metadata import PackageNotFoundError, version

from jaxfl import bench, clock, data, edges, methods, models, plots, testing, wire
from jaxfl.analysis.canaries import CanaryAudit, audit_canaries
from jaxfl.analysis.choice import Choice, choose_num_clusters, elbow
from jaxfl.analysis.class_confusion import ClassConfusion, class_confusion
from jaxfl.analysis.empirical_privacy import epsilon_from_guesses, epsilon_from_rates
from jaxfl.analysis.layer_profile import LayerProfile, layer_profile
from jaxfl.analysis.local_sketches import ClientSimilarity, Sketches, client_similarity, local_sketches
from jaxfl.analysis.membership import Membership, MembershipRisk, membership
from jaxfl.analysis.thresholds import threshold_sweep
from jaxfl.client.steps import Steps
from jaxfl.clock import ClientClock
from jaxfl.cohort import Plan
from jaxfl.edges import EdgeServers
from jaxfl.jobs.job import run_named
from jaxfl.jobs.loaded import LoadedRun, load
from jaxfl.methods.parts import matching
from jaxfl.methods.scheduled import scheduled
from jaxfl.methods.stocfl.representation import represent
from jaxfl.methods.stocfl.representation import represent_clients as representations
from jaxfl.models import layers
from jaxfl.simulation import callbacks
from jaxfl.simulation.devices import keep_programs, use_cores
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.footprint import footprint
from jaxfl.simulation.mapped import Mapped, run_mapped
from jaxfl.simulation.progress import Diverged
from jaxfl.simulation.records.history import History
from jaxfl.simulation.result import Event, Result
from jaxfl.simulation.run import run
from jaxfl.tasks import (
    Metrics,
    Task,
    augmented,
    classification,
    multilabel,
    next_token,
    regression,
    start_from,
    supervised,
    with_head,
    with_metrics,
)
from jaxfl.wire import Privacy, wired

try:
    __version__ = version("jaxfl")
except PackageNotFoundError:  # a checkout on the path that is not installed
    __version__ = "unknown"

__all__ = [
    "CanaryAudit",
    "Choice",
    "ClassConfusion",
    "ClientClock",
    "EdgeServers",
    "ClientSimilarity",
    "Diverged",
    "Event",
    "FineTune",
    "History",
    "LoadedRun",
    "LayerProfile",
    "Mapped",
    "Membership",
    "MembershipRisk",
    "Metrics",
    "Plan",
    "Privacy",
    "Result",
    "Sketches",
    "Steps",
    "Task",
    "audit_canaries",
    "augmented",
    "bench",
    "callbacks",
    "choose_num_clusters",
    "class_confusion",
    "classification",
    "client_similarity",
    "clock",
    "data",
    "edges",
    "elbow",
    "epsilon_from_guesses",
    "epsilon_from_rates",
    "footprint",
    "keep_programs",
    "layer_profile",
    "layers",
    "load",
    "local_sketches",
    "matching",
    "membership",
    "methods",
    "models",
    "multilabel",
    "next_token",
    "plots",
    "regression",
    "represent",
    "representations",
    "run",
    "run_mapped",
    "run_named",
    "scheduled",
    "start_from",
    "supervised",
    "with_metrics",
    "testing",
    "threshold_sweep",
    "use_cores",
    "wire",
    "wired",
    "with_head",
]
