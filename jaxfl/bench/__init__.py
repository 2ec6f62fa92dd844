"""Speed of rounds on this machine: `scaling` measures them along one axis, each point in a separate process."""

from jaxfl.bench.axes import AXES, ScalingPoint
from jaxfl.bench.scaling import Scaling, Step, scaling

__all__ = ["AXES", "ScalingPoint", "Scaling", "Step", "scaling"]
