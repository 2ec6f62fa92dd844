"""Simulate clustered and personalised federated learning: all clients of a round in one compiled program."""

from importlib.metadata import version

from jaxfl import callbacks, data, methods, models, plots, testing
from jaxfl.choice import Choice, choose_num_clusters
from jaxfl.data.clients import Plan
from jaxfl.finetune import FineTune
from jaxfl.layer_profile import LayerProfile, layer_profile
from jaxfl.local_models import Sketches, local_sketches
from jaxfl.mapped import Mapped, run_mapped
from jaxfl.program import footprint
from jaxfl.simulate import Event, Result, run
from jaxfl.sweeps import threshold_sweep
from jaxfl.tasks import Task, classification

__version__ = version("jaxfl")

__all__ = [
    "Choice",
    "Event",
    "FineTune",
    "LayerProfile",
    "Mapped",
    "Plan",
    "Result",
    "Sketches",
    "Task",
    "callbacks",
    "choose_num_clusters",
    "classification",
    "data",
    "footprint",
    "layer_profile",
    "local_sketches",
    "methods",
    "models",
    "plots",
    "run",
    "run_mapped",
    "testing",
    "threshold_sweep",
]
