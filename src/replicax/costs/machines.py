"""Machines that a step may be simulated on: a table of public figures, and a type for one's own.

Plain numbers: nothing here touches JAX. `costs.timing` computes with them, `costs.calibrate` makes
a `Machine` of what it measures.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from replicax.core import bounded_json

Stage = Literal[0, 1, 2, 3]

FRESH_FROM = 32 * 2**20
"""Bytes from which on the C library asks the system for a buffer, and gives it back."""


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """How fast devices reach each other: the alpha and the beta of the alpha-beta model.

    Args:
        bandwidth: Bytes a second in one direction, while the other direction is as fast.
        latency: Seconds until the first byte of a message arrives.
        axes: 1 for devices at one switch, or in one ring; 2 or 3 for those of a torus, where a
            message passes through fewer devices.

    Raises:
        ValueError: If a number is not possible.

    Example:
        >>> import replicax as rx
        >>> rx.costs.Link(bandwidth=450e9, latency=3.4e-6).axes
        1
    """

    bandwidth: float
    latency: float
    axes: int = 1

    def __post_init__(self) -> None:
        """Checks the arguments."""
        _require_positive("bandwidth", self.bandwidth, "bytes a second")
        _require_not_negative("latency", self.latency, "seconds")
        if self.axes not in (1, 2, 3):
            raise ValueError(f"axes is {self.axes!r}; expected 1, 2 or 3.")


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """A rate that depends on how much there is to do: a straight line between measured points.

    Args:
        sizes: Amounts in ascending order.
        rates: What was measured at each of them.

    Raises:
        ValueError: If the points are no such list.

    Example:
        >>> import replicax as rx
        >>> bandwidth = rx.costs.Curve(sizes=(1e6, 3e6), rates=(40e9, 20e9))
        >>> bandwidth.at(2e6) / 1e9, bandwidth.at(1e9) / 1e9
        (30.0, 20.0)
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        """Checks the arguments."""
        if not self.sizes or len(self.sizes) != len(self.rates):
            raise ValueError(
                f"a curve has {len(self.sizes)} sizes and {len(self.rates)} rates; expected one "
                "rate for each of one or more sizes."
            )
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"the sizes of a curve are {self.sizes}; expected ascending numbers.")
        for rate in self.rates:
            _require_positive("a rate of a curve", rate, "an amount a second")

    def at(self, size: float) -> float:
        """The rate for `size`; that of the nearest point beyond the first and the last.

        Args:
            size: How much there is to do.

        Returns:
            The rate.
        """
        if size <= self.sizes[0]:
            return self.rates[0]
        for index in range(1, len(self.sizes)):
            low, high = self.sizes[index - 1], self.sizes[index]
            if size <= high:
                share = (size - low) / (high - low)
                return self.rates[index - 1] * (1 - share) + self.rates[index] * share
        return self.rates[-1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One type of host: its devices, and how they reach each other and those of other hosts.

    The figures of a vendor are what the hardware does at best. `compute_efficiency` and
    `memory_efficiency` say which part of them programs get; the times of a simulation depend on
    them as much as on the peaks.

    Args:
        name: What to call it.
        peak_flops: For each dtype the floating-point operations a second of one device; must have
            ``"float32"``. A dtype that is missing counts as ``"float32"``. A `Curve` over the FLOPs
            of one product gives small products a lower rate.
        memory_bandwidth: Bytes a second between one device and its memory; a number, or a `Curve`
            over the bytes that a step uses, for processors with caches.
        memory_bytes: The memory of one device.
        strided_bandwidth: Bytes a second in putting elements into another order, where that is
            slower than `memory_bandwidth`.
        fresh_bandwidth: Bytes a second in writing for the first time to memory that the system has
            just given. CPU devices get that for the temporaries of each step from 32 MB on.
        vector_flops: Elementwise operations a second of one device, where an exponential, a tangent
            or a root counts as 8. Infinite if reading and writing them always takes longer.
        devices_per_host: How many devices a host has.
        within: The link between devices that need no network.
        between: The link of one host to other hosts; its devices share it.
        between_workers: The link between processes of one host, for topologies with several of them
            on each; that `within` if None.
        linked_hosts: How many hosts `within` joins: 1 for hosts with a switch of their own, those
            of a pod for TPUs.
        host_link: Bytes a second from the memory of the host to one device.
        compute_efficiency: The part of `peak_flops` that products of matrices reach.
        memory_efficiency: The part of `memory_bandwidth` that programs reach.
        overlap: The part of the time of computation during which collectives may travel; 0 if the
            devices do one thing at a time.
        launch_seconds: What it takes a host to launch a step on one device.
        launch_seconds_per_device: What each further device adds to that.
        collective_seconds: What a collective costs beside its messages.
        shared_compute: Whether all devices of a host share its processor, as virtual CPU devices
            do: then `peak_flops` and `memory_bandwidth` are those of the host, and N devices take
            N times as long for N times the work.
        source: Where the figures are from.

    Raises:
        ValueError: If a number is not possible.

    Example:
        >>> import replicax as rx
        >>> machine = rx.costs.Machine(
        ...     name="two GPUs",
        ...     peak_flops={"float32": 20e12, "bfloat16": 80e12},
        ...     memory_bandwidth=900e9,
        ...     memory_bytes=24e9,
        ...     devices_per_host=2,
        ...     within=rx.costs.Link(bandwidth=25e9, latency=5e-6),
        ...     between=rx.costs.Link(bandwidth=1.25e9, latency=30e-6),
        ... )
        >>> rx.costs.ClusterTopology(hosts=4, machine=machine).num_devices
        8
    """

    name: str
    peak_flops: Mapping[str, float | Curve]
    memory_bandwidth: float | Curve
    memory_bytes: float
    devices_per_host: int
    within: Link
    between: Link
    between_workers: Link | None = None
    linked_hosts: int = 1
    vector_flops: float = math.inf
    strided_bandwidth: float = math.inf
    fresh_bandwidth: float = math.inf
    host_link: float = math.inf
    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    overlap: float = 0.0
    launch_seconds: float = 0.0
    launch_seconds_per_device: float = 0.0
    collective_seconds: float = 0.0
    shared_compute: bool = False
    source: str = "your own figures"

    def __post_init__(self) -> None:
        """Checks the arguments."""
        if "float32" not in self.peak_flops:
            raise ValueError(
                f"peak_flops of machine {self.name!r} has {sorted(self.peak_flops)}; expected "
                "'float32' among them, which stands for every dtype that is missing."
            )
        object.__setattr__(self, "peak_flops", types.MappingProxyType(dict(self.peak_flops)))
        for dtype, peak in self.peak_flops.items():
            if not isinstance(peak, Curve):
                _require_positive(f"peak_flops[{dtype!r}]", peak, "operations a second")
        if not isinstance(self.memory_bandwidth, Curve):
            _require_positive("memory_bandwidth", self.memory_bandwidth, "bytes a second")
        _require_positive("vector_flops", self.vector_flops, "operations a second")
        _require_positive("fresh_bandwidth", self.fresh_bandwidth, "bytes a second")
        _require_positive("memory_bytes", self.memory_bytes, "bytes")
        _require_positive("strided_bandwidth", self.strided_bandwidth, "bytes a second")
        _require_positive("host_link", self.host_link, "bytes a second")
        _require_count("devices_per_host", self.devices_per_host)
        _require_count("linked_hosts", self.linked_hosts)
        for name in ("launch_seconds", "launch_seconds_per_device", "collective_seconds"):
            _require_not_negative(name, getattr(self, name), "seconds")
        for name in ("compute_efficiency", "memory_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected a part of 1.")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap is {self.overlap!r}; expected a part of 1, or 0.")

    def _flops_per_second(self, dtype: str, flops: float) -> float:
        """What one device reaches in a product of so many operations.

        Args:
            dtype: Of the factors.
            flops: The operations of the product.

        Returns:
            Operations a second.
        """
        peak = self.peak_flops.get(dtype, self.peak_flops["float32"])
        return (peak.at(flops) if isinstance(peak, Curve) else peak) * self.compute_efficiency

    def _bytes_per_second(self, size: float) -> float:
        """What one device reaches in reading and writing.

        Args:
            size: The bytes that are used again and again.

        Returns:
            Bytes a second.
        """
        rate = self.memory_bandwidth
        return (rate.at(size) if isinstance(rate, Curve) else rate) * self.memory_efficiency

    # -- files -------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The machine as JSON; `from_json` reads it.

        Returns:
            One object.
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        peaks = {dtype: _jsonable(peak) for dtype, peak in self.peak_flops.items()}
        return json.dumps({**{k: _jsonable(v) for k, v in fields.items()}, "peak_flops": peaks})

    @classmethod
    def from_json(cls, text: str) -> Machine:
        """The machine that `to_json` wrote.

        Args:
            text: The JSON.

        Returns:
            An equal machine.

        Raises:
            ValueError: If it describes no machine.
        """
        found = bounded_json.parse(text)
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(found, dict) or not set(found) <= known:
            given = sorted(set(found) - known) if isinstance(found, dict) else found
            raise ValueError(
                f"this is no machine: {given!r} is not one of its fields, which are "
                f"{sorted(known)}. Write it with Machine.to_json or Machine.save."
            )
        try:
            peaks = {dtype: _rate_of(peak) for dtype, peak in found["peak_flops"].items()}
            workers = found.get("between_workers")
            fields = {
                **found,
                "peak_flops": peaks,
                "memory_bandwidth": _rate_of(found["memory_bandwidth"]),
                "within": Link(**found["within"]),
                "between": Link(**found["between"]),
                "between_workers": workers if workers is None else Link(**workers),
                "vector_flops": _rate_of(found.get("vector_flops")),
                "strided_bandwidth": _rate_of(found.get("strided_bandwidth")),
                "fresh_bandwidth": _rate_of(found.get("fresh_bandwidth")),
                "host_link": _rate_of(found.get("host_link")),
            }
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"this is no machine: {error}. Write it with Machine.to_json or Machine.save."
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the machine to a file, as JSON.

        Args:
            path: The file.
        """
        pathlib.Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Machine:
        """Reads a machine that `save` wrote.

        Args:
            path: The file.

        Returns:
            The machine.

        Raises:
            ValueError: If the file describes no machine.
        """
        return cls.from_json(pathlib.Path(path).read_text(encoding="utf-8"))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Link | Curve):
        return dataclasses.asdict(value)
    return None if value == math.inf else value


def _rate_of(value: Any) -> float | Curve:
    if isinstance(value, dict):
        return Curve(tuple(value["sizes"]), tuple(value["rates"]))
    return math.inf if value is None else value


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterTopology:
    """Hosts of one type, and how the replicas of a step are laid over their devices.

    Args:
        hosts: How many.
        machine: What type of host: one of `MACHINES` by name, or a `Machine`.
        devices_per_host: How many devices of each host are used; all of them if None.
        logical_devices: How many devices each replica spans.
        stage: The stage of ``experimental.Sharding``, or 0 for whole copies.
        workers_per_host: How many processes share a host. It matters only where processes of one
            host do not reach each other as fast as devices of one process, as on CPUs.

    Raises:
        ValueError: If the devices cannot be divided so, or no machine has that name.

    Example:
        >>> import replicax as rx
        >>> pod = rx.costs.ClusterTopology(hosts=64, machine="dgx-h100", stage=1)
        >>> pod.num_devices, pod.num_replicas
        (512, 512)
    """

    hosts: int
    machine: Machine | str
    devices_per_host: int | None = None
    logical_devices: int = 1
    stage: Stage = 0
    workers_per_host: int = 1

    def __post_init__(self) -> None:
        """Checks the arguments."""
        object.__setattr__(self, "machine", machine_of(self.machine))
        if self.devices_per_host is None:
            object.__setattr__(self, "devices_per_host", self._type_of_host.devices_per_host)
        for name in ("hosts", "devices_per_host", "logical_devices", "workers_per_host"):
            _require_count(name, getattr(self, name))
        if isinstance(self.stage, bool) or self.stage not in (0, 1, 2, 3):
            raise ValueError(f"stage is {self.stage!r}; expected 0, 1, 2 or 3.")
        most = self._type_of_host.devices_per_host
        if self._devices_on_host > most and not self._type_of_host.shared_compute:
            raise ValueError(
                f"devices_per_host is {self.devices_per_host}, but a host of type "
                f"{self._type_of_host.name!r} has {most}. Use more hosts."
            )
        if self._devices_on_host % self.workers_per_host:
            raise ValueError(
                f"{self._devices_on_host} devices on each host do not divide among "
                f"{self.workers_per_host} workers. Use a divisor of {self._devices_on_host}."
            )
        if self.num_devices % self.logical_devices:
            raise ValueError(
                f"{self.num_devices} devices do not divide into replicas of "
                f"{self.logical_devices} logical devices: {self.num_devices % self.logical_devices}"
                " left over."
            )

    @property
    def _type_of_host(self) -> Machine:
        """The machine, where it was given by its name too."""
        assert isinstance(self.machine, Machine)
        return self.machine

    @property
    def _devices_on_host(self) -> int:
        """How many devices of each host are used."""
        assert self.devices_per_host is not None
        return self.devices_per_host

    @property
    def num_devices(self) -> int:
        """How many devices there are on all hosts."""
        return self.hosts * self._devices_on_host

    @property
    def num_replicas(self) -> int:
        """How many replicas there are on all hosts."""
        return self.num_devices // self.logical_devices

    def describe(self) -> str:
        """The layout in words.

        Returns:
            One line.

        Example:
            >>> import replicax as rx
            >>> rx.costs.ClusterTopology(hosts=8, machine="tpu-v5e", logical_devices=2).describe()
            '32 replicas of 2 logical devices on 8 hosts of type tpu-v5e, nothing split'
        """
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts:,} hosts"
        replicas = "1 replica" if self.num_replicas == 1 else f"{self.num_replicas:,} replicas"
        if self.logical_devices > 1:
            replicas += f" of {self.logical_devices} logical devices"
        held = ("nothing", "slots", "slots and gradients", "slots, gradients and parameters")
        return f"{replicas} on {hosts} of type {self._type_of_host.name}, {held[self.stage]} split"


def machine_of(machine: Machine | str) -> Machine:
    """A machine, or the one that has this name in `MACHINES`.

    Args:
        machine: The machine, or its name.

    Returns:
        The machine.

    Raises:
        ValueError: If there is none of that name; says which are near.

    Example:
        >>> machine_of("dgx-h100").memory_bytes
        80000000000.0
    """
    if isinstance(machine, Machine):
        return machine
    if machine in MACHINES:
        return MACHINES[machine]
    near = difflib.get_close_matches(str(machine), MACHINES, n=1, cutoff=0.4)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"there is no machine {machine!r}.{meant} Known are {', '.join(sorted(MACHINES))}. For "
        "another type pass a Machine with its figures, or what rx.calibrate() gives."
    )


def _require_positive(name: str, value: float, unit: str) -> None:
    if isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} is {value!r}; expected a positive number of {unit}.")


def _require_not_negative(name: str, value: float, unit: str) -> None:
    if isinstance(value, bool) or not value >= 0:
        raise ValueError(f"{name} is {value!r}; expected {unit}, 0 or more.")


def _require_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected an int of 1 or more.")


# -- public figures ------------------------------------------------------------------------------

_NCCL = "latencies: the constants of NCCL's src/graph/tuning.cc (ring, simple protocol)"
_NOMINAL = "efficiencies, overlap, launch: nominal"

# What NCCL assumes for a hop over NVLink, a hop over the network, and the base of a collective.
_NVLINK_HOP, _NETWORK_HOP, _NCCL_BASE = 3.4e-6, 14e-6, 8.4e-6


@dataclasses.dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU, by its data sheet: operations a second, memory, and links in one direction."""

    sheet: str
    float32: float
    half: float
    vector: float
    memory: tuple[float, float]
    nvlink: float
    host_link: float


_A100 = _Gpu(
    "NVIDIA A100 Tensor Core GPU data sheet (80GB SXM, dense, TF32 for products of float32; NVLink "
    "600 GB/s in both directions)",
    float32=156e12,
    half=312e12,
    vector=19.5e12,
    memory=(80e9, 2039e9),
    nvlink=300e9,
    host_link=32e9,
)
_A100_40GB = dataclasses.replace(
    _A100, sheet=_A100.sheet.replace("80GB", "40GB"), memory=(40e9, 1555e9)
)
_H100 = _Gpu(
    "NVIDIA H100 Tensor Core GPU data sheet (SXM, dense, TF32 for products of float32; NVLink "
    "900 GB/s in both directions)",
    float32=494.5e12,
    half=989e12,
    vector=67e12,
    memory=(80e9, 3350e9),
    nvlink=450e9,
    host_link=64e9,
)
_H200 = dataclasses.replace(
    _H100, sheet=_H100.sheet.replace("H100", "H200"), memory=(141e9, 4800e9)
)


def _gpu_host(name: str, gpu: _Gpu, network: float, source: str) -> Machine:
    return Machine(
        name=name,
        peak_flops={"float32": gpu.float32, "bfloat16": gpu.half, "float16": gpu.half},
        memory_bytes=gpu.memory[0],
        memory_bandwidth=gpu.memory[1],
        vector_flops=gpu.vector,
        devices_per_host=8,
        within=Link(gpu.nvlink, _NVLINK_HOP),
        between=Link(network, _NETWORK_HOP),
        host_link=gpu.host_link,
        compute_efficiency=0.5,
        memory_efficiency=0.8,
        overlap=0.8,
        launch_seconds=50e-6,
        collective_seconds=_NCCL_BASE,
        source=f"{gpu.sheet}; {source}; {_NCCL}; {_NOMINAL}",
    )


def _tpu_host(
    name: str,
    *,
    bfloat16: float,
    memory: tuple[float, float],
    interconnect: float,
    axes: int,
    devices: int,
    pod: int,
    source: str,
    network: float = 25e9,
) -> Machine:
    return Machine(
        name=name,
        peak_flops={"float32": bfloat16, "bfloat16": bfloat16},
        memory_bytes=memory[0],
        memory_bandwidth=memory[1],
        devices_per_host=devices,
        within=Link(interconnect, 1e-6, axes),
        between=Link(network, 20e-6),
        linked_hosts=pod // devices,
        host_link=15e9,
        compute_efficiency=0.5,
        memory_efficiency=0.8,
        overlap=0.8,
        launch_seconds=50e-6,
        collective_seconds=2e-6,
        source=(
            f"{source}; 15 GB/s of PCIe a chip, and 25 GB/s of network a host where no other "
            f"figure is given: How to Scale Your Model, part 2; latencies and {_NOMINAL}; products "
            "of float32 have one pass in bfloat16, the default of JAX"
        ),
    )


_HOSTS: Sequence[Machine] = (
    _gpu_host("aws-p4d", _A100_40GB, 50e9, "Amazon EC2 P4 instances (400 Gb/s)"),
    _gpu_host("aws-p5", _H100, 400e9, "Amazon EC2 P5 instances (3,200 Gb/s)"),
    _gpu_host("dgx-a100", _A100, 200e9, "NVIDIA DGX A100 data sheet (8 x 200 Gb/s)"),
    _gpu_host("dgx-h100", _H100, 400e9, "NVIDIA DGX H100 data sheet (8 x 400 Gb/s)"),
    _gpu_host("dgx-h200", _H200, 400e9, "NVIDIA DGX H200 data sheet (8 x 400 Gb/s)"),
    _tpu_host(
        "tpu-v4",
        bfloat16=275e12,
        memory=(32e9, 1200e9),
        interconnect=270e9,
        axes=3,
        devices=4,
        pod=4096,
        source=(
            "Google Cloud documentation, TPU v4 (275 TFLOPs, 32 GB at 1,200 GB/s, pods of 4,096 "
            "chips); How to Scale Your Model, part 2 (6 links of 45 GB/s)"
        ),
    ),
    _tpu_host(
        "tpu-v5e",
        bfloat16=197e12,
        memory=(16e9, 819e9),
        interconnect=200e9,
        axes=2,
        devices=8,
        pod=256,
        source=(
            "Google Cloud documentation, TPU v5e (197 TFLOPs, 16 GB at 819 GB/s, interconnect "
            "400 GB/s a chip in both directions, pods of 256 chips, network 2 x 100 Gb/s a host)"
        ),
    ),
    _tpu_host(
        "tpu-v5p",
        bfloat16=459e12,
        memory=(95e9, 2765e9),
        interconnect=600e9,
        axes=3,
        devices=4,
        pod=8960,
        source=(
            "Google Cloud documentation, TPU v5p (459 TFLOPs, 95 GB at 2,765 GB/s, interconnect "
            "4,800 Gb/s a chip, pods of 8,960 chips)"
        ),
    ),
    _tpu_host(
        "tpu-v6e",
        bfloat16=918e12,
        memory=(32e9, 1600e9),
        interconnect=400e9,
        axes=2,
        devices=8,
        pod=256,
        source=(
            "Google Cloud documentation, TPU v6e (918 TFLOPs, 32 GB at 1,600 GB/s, interconnect "
            "800 GB/s a chip in both directions, pods of 256 chips, network 4 x 200 Gb/s a host)"
        ),
        network=100e9,
    ),
)


class Machines(Mapping[str, Machine]):
    """Machines by name, with a table of their figures for a terminal or a notebook."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = {machine.name: machine for machine in machines}

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._machines)

    def __len__(self) -> int:
        return len(self._machines)

    def __repr__(self) -> str:
        return f"<machines {', '.join(self)}>"


MACHINES = Machines(_HOSTS)
"""Types of hosts that can be rented or bought, by name."""
