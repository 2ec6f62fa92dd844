"""The preparation of a run on this machine: its plan, and which arrays are resident and which stay on the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfl import tree
from jaxfl.cohort import DevicesChoice, Plan, PlanChoice, resolve_mesh, resolve_plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method, served_model
from jaxfl.simulation import processes
from jaxfl.simulation.evaluation.evaluate import Evaluator, evaluator
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.evaluation.test_sets import NO_TEST_SETS, TestSets
from jaxfl.simulation.host.streaming import Resident, keeps_data_on_host, keeps_state_on_host
from jaxfl.simulation.program import initialiser, shapes_of


class Prepared(NamedTuple):
    """A method and a federation, prepared for rounds or evaluations on this machine; nothing is allocated yet.

    Attributes:
        method: the method.
        size: clients of a cohort.
        shapes: of the method's first state.
        plan: how the engine walks through the clients of one seed.
        lane: the plan of one of several seeds in a program, on its device.
        host_data: whether the clients' rows of data stay on the host, and are sent in windows.
        host_state: whether the state's rows of the clients stay on the host, see `Method.per_client`.
    """

    method: Method
    size: int
    shapes: Any
    plan: Plan
    lane: Plan
    host_data: bool
    host_state: bool

    @classmethod
    def of(
        cls,
        method: Method,
        data: FederatedData,
        size: int,
        *,
        plan: PlanChoice = "auto",
        devices: DevicesChoice = None,
        resident: Resident = "auto",
        seeds: int = 1,
        models: int = 1,
    ) -> "Prepared":
        """Returns a method and a federation, prepared.

        Args:
            method: the method.
            data: the federation.
            size: clients of a cohort, or as many as are computed in one pass.
            plan, devices, resident: as `jaxfl.run` takes them.
            seeds: that one program may train.
            models: that each client trains at once.

        Raises:
            ValueError: the plan or the devices are not possible, or rows must stay on the host and cannot.
        """
        data = data.in_programs()
        mesh = resolve_mesh(plan, devices)
        # where the run will have the data: then the program of the first state is not traced again
        init = initialiser(method, shapes_of(data), mesh)
        shapes = init.eval_shape(jax.random.key(0), tree.shapes_on(mesh, data))
        model = served_model(method, shapes)
        chosen = resolve_plan(plan, model, size, models=models, devices=devices)
        lane = lane_plan(plan, chosen, model, size, seeds)
        host_data = keeps_data_on_host(method, data, resident)
        beside = 0 if host_data else tree.num_bytes(data)
        host_state = keeps_state_on_host(method, shapes, size, resident, chosen, beside=beside)
        chosen = chosen._replace(chunk=processes.least(chosen.chunk))
        return cls(method, size, shapes, chosen, lane, host_data, host_state)

    def place(self, data: Sequence[FederatedData]) -> list[FederatedData]:
        """Returns federations on the plan's devices, equal arrays once; as they are where rows stay on the host."""
        if self.host_data:
            return list(data)
        there: dict[int, Any] = {}

        def put(leaf: Any) -> Any:
            if id(leaf) not in there:
                spread = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1  # by an earlier run
                there[id(leaf)] = tree.placed(leaf, self.plan.place if self.plan.mesh is not None or spread else None)
            return there[id(leaf)]

        return [jax.tree.map(put, one) for one in data]

    def evaluator(
        self,
        data: FederatedData,
        finetune: FineTune | None = None,
        test_rows: int | None = None,
        sample: np.ndarray | None = None,
        test_sets: TestSets = NO_TEST_SETS,
    ) -> Evaluator:
        """Returns `(key, state) -> Evaluation`, see `jaxfl.simulation.evaluation.evaluate.evaluator`.

        Args:
            data: the federation, from `place`.
            finetune: how clients train before they are tested a second time; None tests them once.
            test_rows: the most rows of a client that are tested; None tests all.
            sample: the evaluation sample `[M]`, in ascending order; None tests all clients.
            test_sets: of all clients, from `make_test_sets`.
        """
        how = {"clients": sample, "stream": self.host_data, "test_sets": test_sets}
        return evaluator(self.method, data, self.plan, finetune, test_rows, **how)


def lane_plan(choice: PlanChoice, plan: Plan, model: Any, size: int, seeds: int) -> Plan:
    """Returns the plan of one of several seeds in a program, on its device.

    Args:
        choice: the plan that was given, or `"auto"`.
        plan: what it is for one seed.
        model: shapes of what a client trains.
        size: clients of a cohort.
        seeds: how many one program trains.
    """
    if isinstance(choice, Plan):
        return choice._replace(mesh=None)
    devices = 1 if plan.mesh is None else plan.mesh.size
    return resolve_plan(choice, model, size, models=-(-seeds // devices), devices=1)
