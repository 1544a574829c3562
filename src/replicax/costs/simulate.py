"""`simulate`: a step on machines that are not here: how long it takes, and what fits.

The step is traced and compiled for the devices at hand (`costs.samples`), laid out for others
(`costs.scaling`) and timed by figures of a machine (`costs.timing`). Nothing runs, and nothing is
compiled for devices that are not here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from replicax.core.shown import Rows, as_size
from replicax.costs.curves import efficiency_plot
from replicax.costs.figures import Report, count, duration
from replicax.costs.machines import ClusterTopology, Machine
from replicax.costs.samples import SampledStep
from replicax.costs.scaling import DeviceMemory, memory_of, work_of
from replicax.costs.timing import Limit, StepTime, step_time
from replicax.strategies.base import Strategy

HOSTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""For how many hosts a step is simulated if nothing else is asked for."""

GOOD_EFFICIENCY = 0.8
"""Where scaling is no longer said to be good."""

Batch = Literal["per_replica", "global"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepPrediction:
    """A step on one topology.

    Attributes:
        topology: The devices, and how the replicas are laid over them.
        batch: The examples of each replica; 0 for a step without a batch.
        global_batch: The examples of all replicas.
        time: Where the time of a step goes.
        memory: What one device holds.
        capacity: What it could hold.
        largest_batch: The most examples of a replica that fit beside the variables: an estimate
            from the batch at hand and one 8 times as large.
        largest_model: How many times as large variables, slots and gradients could be.
        efficiency: The examples (or steps) a second of each device, as a part of those on the
            fewest hosts that were asked for.
        slowed_by: What makes the step longer than on the fewest hosts, or None.
        is_estimated: Whether the layout is another one than that of the step, so that rules stand
            for a part of its program.

    Example:
        >>> import replicax as rx
        >>> two = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> step = rx.function(lambda x: rx.get_replica_context().all_reduce("SUM", x))
        >>> host = rx.costs.ClusterTopology(hosts=1, machine="dgx-a100")
        >>> x = two.distribute_batch([1.0, 2.0])
        >>> chosen = rx.simulate(step, x, topology=host, strategy=two, hosts=()).chosen
        >>> chosen.fits, chosen.limit, chosen.batch, chosen.global_batch
        (True, 'latency', 1, 8)
    """

    topology: ClusterTopology
    batch: int
    global_batch: int
    time: StepTime
    memory: DeviceMemory
    capacity: float
    largest_batch: int
    largest_model: float
    efficiency: float
    slowed_by: Limit | None
    is_estimated: bool

    @property
    def fits(self) -> bool:
        """Whether the memory of a device is enough."""
        return self.memory.total <= self.capacity

    @property
    def examples_per_second(self) -> float:
        """Of all replicas; of a step without a batch, the replicas count."""
        return (self.global_batch or self.topology.num_replicas) / self.time.seconds

    @property
    def limit(self) -> Limit | Literal["does not fit"]:
        """What takes most of the step; or that it does not fit."""
        return self.time.limit if self.fits else "does not fit"

    def describe(self) -> str:
        """The layout, its time and its memory in words.

        Returns:
            One line.
        """
        time = f"{duration(self.time.seconds)} a step, limited by {self.time.limit}"
        room = "" if self.fits else ", which does not fit"
        held = f"{as_size(self.memory.total)} of {as_size(self.capacity)} on each device{room}"
        return f"{self.topology.describe()}: {time}; {held}"

    def _as_dict(self) -> dict[str, Any]:
        topology, time = self.topology, self.time
        return {
            "hosts": topology.hosts,
            "devices_per_host": topology._devices_on_host,
            "machine": topology._type_of_host.name,
            "replicas": topology.num_replicas,
            "logical_devices": topology.logical_devices,
            "stage": topology.stage,
            "batch_per_replica": self.batch,
            "global_batch": self.global_batch,
            "step_seconds": time.seconds,
            "seconds": {
                "compute": time.compute,
                "memory": time.memory,
                "exposed_communication": time.exposed,
                "hidden_communication": time.hidden,
                "latency": time.latency,
                "link": time.link,
                "input": time.input,
                "launch": time.launch,
            },
            "limit": self.limit,
            "slowed_by": self.slowed_by,
            "efficiency": self.efficiency,
            "examples_per_second": self.examples_per_second,
            "memory_bytes": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "capacity_bytes": self.capacity,
            "fits": self.fits,
            "largest_batch": self.largest_batch,
            "largest_model": self.largest_model,
            "is_estimated": self.is_estimated,
        }


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Simulation(Report):
    """What `simulate` found, for each number of hosts; printed as a table.

    Attributes:
        name: The name of the step.
        machine: The type of the hosts.
        batch: What stays the same: the batch of a replica, or the global one.
        predictions: One for each number of hosts, the fewest first.
        chosen: The one of the topology that was asked for.
        notes: What the figures leave out or assume, for this step.

    Example:
        >>> import replicax as rx
        >>> two = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> step = rx.function(lambda x: rx.get_replica_context().all_reduce("SUM", x))
        >>> pods = rx.costs.ClusterTopology(hosts=8, machine="dgx-a100")
        >>> x = two.distribute_batch([1.0, 2.0])
        >>> found = rx.simulate(step, x, topology=pods, strategy=two, hosts=(1, 8))
        >>> found.first_limit.topology.hosts, found.first_limit.slowed_by
        (8, 'latency')
    """

    name: str
    machine: Machine
    batch: Batch
    predictions: tuple[StepPrediction, ...]
    chosen: StepPrediction
    notes: tuple[str, ...]

    @property
    def first_limit(self) -> StepPrediction | None:
        """With the fewest hosts, what does not fit or scales badly; None if all goes well."""
        return next(
            (one for one in self.predictions if not one.fits or one.efficiency < GOOD_EFFICIENCY),
            None,
        )

    def svg(self) -> str:
        """A plot of the efficiency over the number of hosts.

        Returns:
            The picture.
        """
        points = [(one.topology.hosts, one.efficiency) for one in self.predictions]
        marks = [one.limit for one in self.predictions]
        return efficiency_plot(self._title(), points, marks)

    def to_json(self) -> str:
        """All figures.

        Returns:
            One JSON object.
        """
        return json.dumps(
            {
                "step": self.name,
                "machine": json.loads(self.machine.to_json()),
                "batch": self.batch,
                "predictions": [one._as_dict() for one in self.predictions],
                "chosen": self.chosen._as_dict(),
                "first_limit": None if self.first_limit is None else self.first_limit._as_dict(),
                "notes": list(self.notes),
            }
        )

    def _title(self) -> str:
        return f"step {self.name!r} on hosts of type {self.machine.name}"

    def _rows(self) -> Rows:
        return [_COLUMNS, *map(row_of, self.predictions)]

    def _picture(self) -> str:
        return self.svg()

    def _lines(self) -> list[str]:
        one = self.chosen
        lines = [
            one.describe(),
            f"fits with up to {count(one.largest_batch)} examples a replica, or a model "
            f"{one.largest_model:.3g} times as large",
        ]
        limit = self.first_limit
        if limit is None:
            most = count(self.predictions[-1].topology.hosts)
            lines.append(f"scales to {most} hosts with at least {GOOD_EFFICIENCY:.0%} efficiency")
        elif not limit.fits:
            lines.append(
                f"the first limit is memory: on {count(limit.topology.hosts)} hosts a device needs "
                f"{as_size(limit.memory.total)} and has {as_size(limit.capacity)}"
            )
        else:
            lines.append(
                f"the first limit is {limit.slowed_by}: {limit.efficiency:.0%} efficiency on "
                f"{count(limit.topology.hosts)} hosts"
            )
        if self.batch == "global" and one.batch:
            lines.append(f"the global batch stays {count(one.global_batch)}")
        return [*lines, *self.notes]


_COLUMNS = (
    "hosts",
    "replicas",
    "batch",
    "step",
    "compute",
    "memory",
    "exposed",
    "hidden",
    "input",
    "launch",
    "efficiency",
    "held",
    "limit",
)


def row_of(one: StepPrediction) -> tuple[str, ...]:
    """The figures of a prediction, as a table shows them."""
    time = one.time
    seconds = (time.compute, time.memory, time.exposed, time.hidden, time.input, time.launch)
    return (
        count(one.topology.hosts),
        count(one.topology.num_replicas),
        count(one.batch),
        duration(time.seconds),
        *map(duration, seconds),
        f"{one.efficiency:.0%}",
        as_size(one.memory.total),
        one.limit,
    )


def simulate(
    step: Callable[..., Any],
    *args: Any,
    topology: ClusterTopology,
    strategy: Strategy | None = None,
    hosts: Sequence[int] = HOSTS,
    batch: Batch = "per_replica",
    examples_per_second: float = math.inf,
) -> Simulation:
    """What a step takes on machines that are not here.

    Nothing runs. The step is traced and compiled for the devices at hand, of which there must be
    two replicas or more, and what it does is laid out over `topology` by rules and figures; the
    documentation says which, and how far they were off where they could be compared.

    Args:
        step: A ``function``, or any function, which is then seen as if it were one.
        *args: Its arguments. Their per-replica values say how large the batch is.
        topology: The machines, and how the replicas are laid over them.
        strategy: Whose replicas would run the step, by ``strategy.run(step, args)``. None
            for a call as it stands.
        hosts: For which numbers of hosts to simulate it beside that of `topology`.
        batch: What stays the same: ``"per_replica"`` or ``"global"``.
        examples_per_second: How many examples one host can read.

    Returns:
        A prediction for each number of hosts.

    Raises:
        TypeError: If `topology` is none.
        ValueError: For another `batch`, for hosts that are no positive numbers, or a step of one
            replica, or one that cannot be traced for the batches that follow.

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
        >>> x = strategy.distribute_batch(np.ones((8, 64), np.float32))
        >>> pod = rx.costs.ClusterTopology(hosts=64, machine="dgx-h100")
        >>> found = rx.simulate(step, x, topology=pod, hosts=(1, 1024))
        >>> [(one.topology.num_replicas, one.limit) for one in found.predictions]
        [(8, 'latency'), (512, 'latency'), (8192, 'latency')]
        >>> found.chosen.memory.variables  # 64 * 64 numbers of 4 bytes
        16384
    """
    if not isinstance(topology, ClusterTopology):
        raise TypeError(
            f"topology is {topology!r}; expected a ClusterTopology: "
            "rx.costs.ClusterTopology(hosts=64, machine='dgx-h100')."
        )
    if batch not in ("per_replica", "global"):
        raise ValueError(f"batch is {batch!r}; expected 'per_replica' or 'global'.")
    if not all(isinstance(one, int) and one >= 1 for one in hosts):
        raise ValueError(f"hosts is {hosts!r}; expected ints of 1 or more.")
    sampled = SampledStep(step, args, strategy)
    numbers = sorted({*hosts, topology.hosts})
    topologies = [dataclasses.replace(topology, hosts=number) for number in numbers]
    found = predict_all(sampled, topologies, batch, examples_per_second)
    return Simulation(
        sampled.at_hand.name,
        topology._type_of_host,
        batch,
        tuple(found),
        found[numbers.index(topology.hosts)],
        tuple(notes_on(sampled, found)),
    )


def predict_all(
    sampled: SampledStep,
    topologies: Sequence[ClusterTopology],
    batch: Batch,
    examples_per_second: float = math.inf,
) -> list[StepPrediction]:
    """A prediction for each topology; the first is what efficiencies are parts of."""
    found = [predict(sampled, one, batch, examples_per_second) for one in topologies]
    rates = [one.examples_per_second / one.topology.num_devices for one in found]
    return [
        dataclasses.replace(
            one, efficiency=rate / rates[0], slowed_by=one.time.slowed_by(found[0].time)
        )
        for one, rate in zip(found, rates, strict=True)
    ]


def predict(
    sampled: SampledStep,
    topology: ClusterTopology,
    batch: Batch,
    examples_per_second: float = math.inf,
) -> StepPrediction:
    """A step on one topology; its efficiency is not known."""
    share, whole = _share(sampled, topology, batch)
    work = work_of(sampled, topology, share)
    memory = memory_of(sampled, topology, share)
    on_host = share * topology._devices_on_host / topology.logical_devices
    time = step_time(work, topology, examples=on_host, examples_per_second=examples_per_second)
    machine = topology._type_of_host
    sharing = topology._devices_on_host if machine.shared_compute else 1
    capacity = machine.memory_bytes / sharing
    is_estimated = (
        topology.stage != sampled.stage
        or topology.logical_devices != sampled.at_hand.num_logical_devices
    )
    return StepPrediction(
        topology,
        share,
        whole,
        time,
        memory,
        capacity,
        _largest_batch(sampled, topology, share, memory, capacity),
        _largest_model(memory, capacity),
        1.0,
        None,
        is_estimated,
    )


def _share(sampled: SampledStep, topology: ClusterTopology, batch: Batch) -> tuple[int, int]:
    """The examples of a replica, the largest share, and of all replicas."""
    if not sampled.batch:
        return 0, 0
    if batch == "per_replica":
        return sampled.batch, sampled.batch * topology.num_replicas
    whole = sampled.batch * sampled.num_replicas
    return -(-whole // topology.num_replicas), whole


def _largest_batch(
    sampled: SampledStep,
    topology: ClusterTopology,
    batch: int,
    memory: DeviceMemory,
    capacity: float,
) -> int:
    """How many examples of a replica fit, by bisection."""
    if not batch:
        return 0
    here = sampled.temporaries(batch)

    def needed(number: int) -> float:
        more = (sampled.temporaries(number, compiles=False) - here) / topology.logical_devices
        return memory.total + more + memory.arguments * (number / batch - 1)

    low, high = 0, batch
    while needed(high) <= capacity and high < 2**40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= capacity else (low, middle)
    return low


def _largest_model(memory: DeviceMemory, capacity: float) -> float:
    """How many times as large the variables could be; gradients are as large as these."""
    grows = 2 * memory.variables + memory.slots
    stays = max(memory.total - grows, 0.0)
    return max((capacity - stays) / grows, 0.0) if grows else math.inf


def notes_on(sampled: SampledStep, found: Sequence[StepPrediction]) -> list[str]:
    """What is assumed for a step, where that may matter."""
    notes = list(sampled.notes)
    if sampled.at_hand.arithmetic.is_at_least:
        notes.append("of a while loop one round is counted")
    if any(one.is_estimated for one in found):
        notes.append(
            f"the step at hand is of stage {sampled.stage} with "
            f"{sampled.at_hand.num_logical_devices} logical devices; rules stand for what other "
            "layouts change in its program"
        )
    if any(one.batch and one.global_batch < one.topology.num_replicas for one in found):
        notes.append("where there are more replicas than examples, some have no example")
    return notes
