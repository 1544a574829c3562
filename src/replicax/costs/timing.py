r"""How long a step takes on machines of which only the figures are known.

Pure arithmetic over a description of the work of one device and a `ClusterTopology`; nothing here
knows a program, or touches JAX. The model, with the names of `costs.machines`:

**Computation** is a roofline for each operation. A product of matrices takes the larger of ``flops
/ peak`` and ``bytes / bandwidth``. What moves data (reductions, gathers) takes ``bytes /
bandwidth``, what puts it into another order ``bytes / strided bandwidth``. Elementwise operations
take the larger of ``operations / vector rate`` and ``bytes / bandwidth``, where the bytes are those
of variables, and of what the forward pass keeps for the backward pass: XLA fuses the others. The
times are added, because a device executes its operations one after the other. Where devices share
one processor, the work of all of them counts.

**Collectives** follow the alpha-beta model: each of the messages that follow one another costs the
latency of the link, the bytes that a device sends are divided by its bandwidth. For n devices and B
bytes:

- ring: ``2 (n - 1)`` messages and ``2 (n - 1) / n * B`` bytes for an all-reduce, half of both for
  an all-gather and a reduce-scatter (`Collective.ring`).
- two trees, as NCCL has them: values travel up and down in slices, one after the other, half of
  them in each tree: ``2 ceil(log2 n)`` messages, and ``2 B`` bytes, for an all-reduce.
- torus of k axes with n devices: the bytes of a ring, over the links of all axes at once, and ``k
  (n ** (1 / k) - 1)`` messages in place of ``n - 1``.
- two levels, for hosts (or pods) with fast links inside: a reduce-scatter inside, an all-reduce of
  the n-th part across, an all-gather inside. All devices of a host share its network.

The fastest that a link allows counts, as libraries choose. Where devices share one processor,
their messages share one memory: the bytes that all of them send are divided by the bandwidth, and
every device adds its latency.

**Overlap.** All collectives but the last may travel while the device computes, during the part
`Machine.overlap` of the time of computation. The last one has to wait for the last gradient.

**Input.** The share of a device in the batch travels over `Machine.host_link` while the step before
runs, and examples come at the rate that the caller knows. What takes longer than the rest of the
step is exposed. The host launches ahead, too, but where it shares the processor with its devices,
and there launching is added.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from replicax.costs.collectives import LOGICAL_DEVICES, Collective
from replicax.costs.machines import FRESH_FROM, ClusterTopology, Link, Machine

Limit = Literal["compute", "memory", "link", "latency", "input", "launch"]


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices, or a convolution.

    Attributes:
        flops: Its floating-point operations, each time.
        num_bytes: The bytes of its operands and its result, each time.
        result_bytes: Those of its result alone.
        dtype: The type of its operands.
        count: How often a step computes it.
    """

    flops: float
    num_bytes: float
    result_bytes: float
    dtype: str
    count: float = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What one device does in a step.

    Attributes:
        products: The products of matrices.
        elements: Elementwise operations.
        element_bytes: What these read and write where they are not fused with others.
        moved_bytes: What reductions, gathers and the like read and write.
        strided_bytes: What is read and written to put elements into another order.
        temporary_bytes: The memory between the inputs and outputs of the step.
        used_bytes: All memory that the step uses.
        collectives: Where devices meet; their group sizes are those of the topology.
        batch_bytes: The device's share of the batch.
    """

    products: tuple[Product, ...] = ()
    elements: float = 0.0
    element_bytes: float = 0.0
    moved_bytes: float = 0.0
    strided_bytes: float = 0.0
    temporary_bytes: float = 0.0
    used_bytes: float = 0.0
    collectives: tuple[Collective, ...] = ()
    batch_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """The floating-point operations of all products."""
        return sum(product.flops * product.count for product in self.products)


@dataclasses.dataclass(frozen=True, slots=True)
class Travel:
    """How long a collective takes.

    Attributes:
        latency: For its messages to set out.
        link: For its bytes.
    """

    latency: float = 0.0
    link: float = 0.0

    @property
    def seconds(self) -> float:
        """Both."""
        return self.latency + self.link

    def plus(self, other: Travel, times: float = 1) -> Travel:
        """This one, and then another one so many times."""
        return Travel(self.latency + times * other.latency, self.link + times * other.link)


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """Where the time of a step goes, in seconds.

    Attributes:
        compute: What is limited by the rate of operations.
        memory: What is limited by the bandwidth of the memory.
        latency: Latency of collectives, hidden or not.
        link: Bytes of collectives, hidden or not.
        hidden: What of both is hidden behind computation.
        input: Waiting for the batch.
        launch: Launching the step.
    """

    compute: float
    memory: float
    latency: float = 0.0
    link: float = 0.0
    hidden: float = 0.0
    input: float = 0.0
    launch: float = 0.0

    @property
    def exposed(self) -> float:
        """The time in which a device does nothing but communicate."""
        return self.latency + self.link - self.hidden

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute + self.memory + self.exposed + self.input + self.launch

    @property
    def limit(self) -> Limit:
        """What takes most of the step.

        Example:
            >>> StepTime(compute=3.0, memory=1.0, latency=1.0, link=4.0, hidden=2.5).limit
            'compute'
        """
        parts = self.parts
        return max(parts, key=parts.__getitem__)

    @property
    def parts(self) -> dict[Limit, float]:
        """The whole step by what limits it; the hidden part of communication is left out."""
        share = self.exposed / (self.latency + self.link) if self.exposed else 0.0
        return {
            "compute": self.compute,
            "memory": self.memory,
            "link": self.link * share,
            "latency": self.latency * share,
            "input": self.input,
            "launch": self.launch,
        }

    def slowed_by(self, other: StepTime) -> Limit | None:
        """What makes the step longer than another one.

        Args:
            other: The other step.

        Returns:
            The part that has grown the most; None if none has.

        Example:
            >>> few, many = StepTime(3.0, 1.0, link=0.5), StepTime(3.0, 1.0, link=2.0)
            >>> many.slowed_by(few), few.slowed_by(many)
            ('link', None)
        """
        before = other.parts
        grown: dict[Limit, float] = {
            part: seconds - before[part] for part, seconds in self.parts.items()
        }
        most = max(grown, key=grown.__getitem__)
        return most if grown[most] > 0 else None


def step_time(
    work: Work,
    topology: ClusterTopology,
    *,
    examples: float = 0.0,
    examples_per_second: float = math.inf,
) -> StepTime:
    """How long a step takes.

    Args:
        work: What each device does.
        topology: The devices.
        examples: How many examples each host reads for a step.
        examples_per_second: How many a host can read.

    Returns:
        The parts of the time.
    """
    machine = topology._type_of_host
    sharing = topology._devices_on_host if machine.shared_compute else 1
    compute, memory = _computation(work, machine, sharing)
    travels = [
        (travel, collective.times)
        for collective in work.collectives
        if (travel := collective_time(collective, topology)).seconds
    ]
    total = Travel()
    for travel, times in travels:
        total = total.plus(travel, times)
    last = travels[-1][0].seconds if travels else 0.0
    hidden = min(machine.overlap * (compute + memory), max(total.seconds - last, 0.0))
    device = compute + memory + total.seconds - hidden
    workers = topology.workers_per_host if machine.shared_compute else 1
    others = topology._devices_on_host - workers
    launch = workers * machine.launch_seconds + others * machine.launch_seconds_per_device
    if not machine.shared_compute:
        launch = max(launch - device, 0.0)
    wait = work.batch_bytes * sharing / machine.host_link
    if examples:
        wait = max(wait, examples / examples_per_second)
    return StepTime(
        compute=compute,
        memory=memory,
        latency=total.latency,
        link=total.link,
        hidden=hidden,
        input=max(wait - device - launch, 0.0),
        launch=launch,
    )


def _computation(work: Work, machine: Machine, sharing: int) -> tuple[float, float]:
    """Seconds limited by operations, and by memory; of so many devices that share a processor."""
    compute = memory = 0.0
    bandwidth = machine._bytes_per_second(sharing * work.used_bytes)
    for product in work.products:
        operations = product.flops / machine._flops_per_second(product.dtype, product.flops)
        transport = product.num_bytes / bandwidth
        if operations >= transport:
            compute += product.count * operations
        else:
            memory += product.count * transport
    memory += work.moved_bytes / bandwidth
    memory += work.strided_bytes / min(bandwidth, machine.strided_bandwidth)
    if work.temporary_bytes >= FRESH_FROM:
        memory += work.temporary_bytes / machine.fresh_bandwidth
    operations = work.elements / machine.vector_flops
    transport = work.element_bytes / bandwidth
    if operations >= transport:
        compute += operations
    else:
        memory += transport
    return sharing * compute, sharing * memory


# -- collectives ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Level:
    """Devices that meet over one type of link.

    Attributes:
        size: How many.
        link: The link of each of them.
        sharing: How many groups like this use the same link at the same time.
    """

    size: int
    link: Link
    sharing: int = 1


def collective_time(collective: Collective, topology: ClusterTopology) -> Travel:
    """How long one execution of a collective takes.

    Args:
        collective: The collective; `group_size` says how many devices meet.
        topology: The devices. Those of one replica are neighbours, and so are replicas that
            follow one another.

    Returns:
        The time, nothing if the device is alone.

    Example:
        >>> from replicax.costs.machines import Link, Machine
        >>> link = Link(bandwidth=1e9, latency=1e-6)
        >>> machine = Machine(name="x", peak_flops={"float32": 1e12}, memory_bandwidth=1e11,
        ...                   memory_bytes=1e10, devices_per_host=4, within=link, between=link)
        >>> small = Collective("all-reduce", (4,), ("float32",), group_size=4)
        >>> travel = collective_time(small, ClusterTopology(hosts=1, machine=machine))
        >>> round(travel.latency * 1e6, 3)  # the two trees: 4 messages
        4.0
    """
    if collective.group_size <= 1:
        return Travel()
    machine = topology._type_of_host
    base = Travel(latency=machine.collective_seconds)
    if machine.shared_compute:
        return base.plus(_in_shared_memory(collective, topology))
    return base.plus(_over_levels(collective, _levels(collective, topology)))


def _in_shared_memory(collective: Collective, topology: ClusterTopology) -> Travel:
    """Between devices of one processor, and then between the hosts or processes that have them."""
    machine = topology._type_of_host
    size = collective.group_size
    apart = machine.between_workers if topology.workers_per_host > 1 else None
    if topology.hosts > 1:
        return _over_levels(collective, _levels(collective, topology))
    link = apart or machine.within
    traffic = collective.ring()
    groups = max(topology._devices_on_host // size, 1)
    num_messages = size * collective.num_operands  # XLA's CPU client sends one after the other
    return Travel(num_messages * link.latency, groups * size * traffic.num_bytes / link.bandwidth)


def _levels(collective: Collective, topology: ClusterTopology) -> list[_Level]:
    """The links that the group of a collective reaches over, the innermost first."""
    machine, size = topology._type_of_host, collective.group_size
    linked_hosts = min(machine.linked_hosts, topology.hosts)
    linked = linked_hosts * topology._devices_on_host
    if collective.over == LOGICAL_DEVICES:
        inside, sharing = min(size, linked), max(linked // size, 1)
    else:  # one device of each replica: there are as many such groups as devices in a replica
        inside = max(min(size, linked // topology.logical_devices), 1)
        sharing = max(linked // inside, 1)
    levels = []
    if inside > 1:
        levels.append(_Level(inside, machine.within))
    if size > inside:
        between = Link(machine.between.bandwidth * linked_hosts, machine.between.latency)
        levels.append(_Level(-(-size // inside), between, sharing * inside))
    return levels


def _over_levels(collective: Collective, levels: Sequence[_Level]) -> Travel:
    """The time over links of several types; the innermost has the most to send."""
    level, *outer = levels
    inner = dataclasses.replace(collective, group_size=level.size)
    if not outer:
        return _over_link(inner, level)
    part = collective.num_bytes / level.size
    match collective.kind:
        case "all-reduce":
            halves = dataclasses.replace(inner, kind="reduce-scatter")
            across = _with_bytes(collective, part)
            travel = _over_link(halves, level)
            travel = travel.plus(_over_levels(_grouped(across, outer), outer))
            return travel.plus(_over_link(_gather_of(inner, part), level))
        case "reduce-scatter":
            across = _with_bytes(collective, part)
            return _over_link(inner, level).plus(_over_levels(_grouped(across, outer), outer))
        case "all-gather":
            num_outer = outer[0].size
            travel = _over_levels(_grouped(collective, outer), outer)
            whole = _with_bytes(inner, collective.num_bytes * num_outer)
            return travel.plus(_over_link(whole, level))
    travel = _over_levels(_grouped(collective, outer), outer)
    return travel.plus(_over_link(inner, level))


def _grouped(collective: Collective, levels: Sequence[_Level]) -> Collective:
    size = math.prod(level.size for level in levels)
    return dataclasses.replace(collective, group_size=size)


def _gather_of(collective: Collective, part: float) -> Collective:
    return dataclasses.replace(_with_bytes(collective, part), kind="all-gather")


def _with_bytes(collective: Collective, num_bytes: float) -> Collective:
    return dataclasses.replace(collective, operand_bytes=(math.ceil(num_bytes),))


def _over_link(collective: Collective, level: _Level) -> Travel:
    """The fastest way over one type of link."""
    link, size = level.link, collective.group_size
    ring = collective.ring()
    num_rounds: float = ring.num_rounds
    if link.axes > 1:
        num_rounds *= link.axes * (size ** (1 / link.axes) - 1) / (size - 1)
    around = Travel(num_rounds * link.latency, level.sharing * ring.num_bytes / link.bandwidth)
    if collective.kind not in ("all-reduce", "broadcast") or link.axes > 1:
        return around
    passes = 2 if collective.kind == "all-reduce" else 1
    trees = Travel(
        passes * math.ceil(math.log2(size)) * link.latency,
        passes * level.sharing * collective.num_bytes / link.bandwidth,
    )
    return min(around, trees, key=lambda travel: travel.seconds)
