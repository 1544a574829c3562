"""`search_layout`: which layout of replicas over the devices of some hosts is the fastest."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from replicax.core.shown import Rows, as_size
from replicax.costs.figures import Report, count, duration
from replicax.costs.machines import ClusterTopology, Machine, Stage, machine_of
from replicax.costs.samples import SampledStep
from replicax.costs.simulate import Batch, StepPrediction, notes_on, predict
from replicax.strategies.base import Strategy

STAGES: tuple[Stage, ...] = (0, 1, 2, 3)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class LayoutSearch(Report):
    """The layouts that fit, the fastest first; printed as a table.

    Attributes:
        name: The name of the step.
        machine: The type of the hosts.
        layouts: Those that fit, in the order of examples a second.
        too_large: Those that do not fit, the smallest first.
        notes: What the figures assume, for this step.

    Example:
        >>> import replicax as rx
        >>> two = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> step = rx.function(lambda x: rx.get_replica_context().all_reduce("SUM", x))
        >>> x = two.distribute_batch([1.0, 2.0])
        >>> found = rx.search_layout(step, x, machine="dgx-a100", stages=(0,), strategy=two)
        >>> found.layouts[0].topology.describe()
        '8 replicas on 1 host of type dgx-a100, nothing split'
    """

    name: str
    machine: Machine
    layouts: tuple[StepPrediction, ...]
    too_large: tuple[StepPrediction, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """All figures.

        Returns:
            One JSON object.
        """
        return json.dumps(
            {
                "step": self.name,
                "layouts": [one._as_dict() for one in self.layouts],
                "too_large": [one._as_dict() for one in self.too_large],
                "notes": list(self.notes),
            }
        )

    def _title(self) -> str:
        return f"layouts of step {self.name!r} on hosts of type {self.machine.name}"

    def _rows(self) -> Rows:
        columns = "hosts", "replicas", "logical", "stage", "batch", "step", "examples/s", "held"
        return [(*columns, "limit"), *map(_row, (*self.layouts, *self.too_large))]

    def _lines(self) -> Sequence[str]:
        if self.layouts:
            return [f"the fastest: {self.layouts[0].describe()}", *self.notes]
        if not self.too_large:
            return ["no number of devices divides into such replicas", *self.notes]
        return [f"no layout fits; the smallest: {self.too_large[0].describe()}", *self.notes]


def _row(one: StepPrediction) -> tuple[str, ...]:
    return (
        count(one.topology.hosts),
        count(one.topology.num_replicas),
        str(one.topology.logical_devices),
        str(one.topology.stage),
        count(one.batch),
        duration(one.time.seconds),
        count(one.examples_per_second),
        as_size(one.memory.total),
        one.limit,
    )


def search_layout(
    step: Callable[..., Any],
    *args: Any,
    machine: Machine | str,
    hosts: int | Sequence[int] = 1,
    devices_per_host: int | None = None,
    logical_devices: Sequence[int] = (1,),
    stages: Sequence[Stage] = STAGES,
    strategy: Strategy | None = None,
    batch: Batch = "global",
) -> LayoutSearch:
    """Simulates a step in many layouts, and ranks those that fit by their speed.

    Args:
        step: A ``function``, or any function, which is then seen as if it were one.
        *args: Its arguments.
        machine: The type of the hosts: a name in ``costs.MACHINES``, or a machine.
        hosts: How many there are; several numbers to choose the number of replicas, too.
        devices_per_host: How many devices of each host are used; all of them if None.
        logical_devices: How many devices a replica may span; what does not divide the devices
            is left out.
        stages: The stages of ``Sharding``; 0 for whole copies.
        strategy: Whose replicas would run the step, by ``strategy.run(step, args)``; None for a
            call as it stands.
        batch: What stays the same: ``"global"`` or ``"per_replica"``.

    Returns:
        The layouts, each with its ``describe()``.

    Raises:
        ValueError: If no machine has that name, or the step cannot be traced for the batches that
            follow.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(np.ones((64, 64), np.float32))
        >>> def replica_step(x):
        ...     gradient = rx.grad(lambda: ((x @ w) ** 2).sum(), w)
        ...     return rx.get_replica_context().all_reduce("MEAN", gradient)
        >>> @rx.function
        ... def step(x):
        ...     w.assign_sub(strategy.run(replica_step, args=(x,)))
        >>> x = strategy.distribute_batch(np.ones((64, 64), np.float32))
        >>> found = rx.search_layout(step, x, machine="dgx-a100", hosts=(1, 8))
        >>> len(found.layouts), found.layouts[0].topology.hosts
        (8, 1)
    """
    machine = machine_of(machine)
    numbers = [hosts] if isinstance(hosts, int) else list(hosts)
    used = machine.devices_per_host if devices_per_host is None else devices_per_host
    sampled = SampledStep(step, args, strategy)
    found = [
        predict(sampled, ClusterTopology(number, machine, used, pieces, stage), batch)
        for number, pieces, stage in itertools.product(numbers, logical_devices, stages)
        if number * used % pieces == 0 and (stage == 0 or number * used > pieces)
    ]
    fitting = sorted((one for one in found if one.fits), key=lambda one: -one.examples_per_second)
    others = sorted((one for one in found if not one.fits), key=lambda one: one.memory.total)
    return LayoutSearch(
        sampled.at_hand.name,
        machine,
        tuple(fitting),
        tuple(others),
        tuple(notes_on(sampled, found)),
    )
