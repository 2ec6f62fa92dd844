"""How fast rounds are on this machine: `scaling` measures them along one axis, each point in a process of its own."""

from jaxfl.bench.axes import AXES, Point
from jaxfl.bench.scaling import Scaling, Step, scaling

__all__ = ["AXES", "Point", "Scaling", "Step", "scaling"]
