"""Measures this machine, so that what is simulated on it can be compared with what happens.

Small programs of known size run on the devices of this process: products of matrices, sums of
arrays, all-reduces, steps that do nothing. The result is a `Machine` as any other. It takes a few
seconds.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from replicax.backend.mesh import ReplicaMesh, replica_mesh
from replicax.backend.runahead import RUN_AHEAD
from replicax.core.names import REPLICA_AXIS
from replicax.costs.machines import FRESH_FROM, Curve, Link, Machine
from replicax.costs.operations import read_operations
from replicax.engine.functions.function import function
from replicax.strategies.mirrored import MirroredStrategy
from replicax.variables.variable import Variable

Clock = Literal["wall", "cpu"]

_CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
_WIDTHS = (64, 128, 256, 512, 1024)
_ARRAY_BYTES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
_COLUMNS, _CACHED_BYTES = 256, 2**19
_SMALL, _LARGE = 64, 2**21  # bytes
_REPEATS = 8
_ROUNDS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class _Stopwatch:
    """Measures how long a call takes: the least of some rounds, the others were disturbed."""

    clock: Callable[[], float]
    seconds: float

    def time(self, run: Callable[[], Any]) -> float:
        """The seconds of one call of `run`, which returns arrays."""
        jax.block_until_ready(run())  # compiles
        calls, took = 1, 0.0
        while True:
            took = self._round(run, calls)
            if took >= self.seconds / 4 or calls >= 4096:
                break
            calls *= 2
        calls = max(1, min(4096, round(calls * self.seconds / max(took, 1e-9))))
        return min(self._round(run, calls) for _ in range(_ROUNDS)) / calls

    def _round(self, run: Callable[[], Any], calls: int) -> float:
        start = self.clock()
        last = None
        for _ in range(calls):
            last = run()
        jax.block_until_ready(last)
        return self.clock() - start


def calibrate(*, clock: Clock = "wall", seconds: float = 0.02) -> Machine:
    """Measures the devices of this process.

    Virtual CPU devices share the cores: the machine that is returned has ``shared_compute``, so a
    simulation lets N of them take N times as long for N times the work. To measure what they cost
    each other there must be several: call ``set_virtual_devices`` before.

    Args:
        clock: ``"wall"`` for a quiet machine; ``"cpu"`` measures the time that the cores of this
            process work, which a busy machine changes less. Simulated times are of the same kind:
            with ``"cpu"`` they are the sum over all cores.
        seconds: How long each measurement takes; there are about a hundred.

    Returns:
        The machine, with the devices of this process as one host.

    Raises:
        ValueError: For another clock, or no time.

    Example:
        >>> import replicax as rx
        >>> here = rx.calibrate(seconds=0.001)
        >>> here.shared_compute, here.devices_per_host == rx.MirroredStrategy().num_replicas_in_sync
        (True, True)
        >>> rx.costs.Machine.from_json(here.to_json()) == here
        True
    """
    if clock not in _CLOCKS:
        raise ValueError(f"clock is {clock!r}; expected 'wall' or 'cpu'.")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds!r}; expected a positive number.")
    watch = _Stopwatch(_CLOCKS[clock], seconds)
    devices = jax.local_devices()
    is_shared = devices[0].platform == "cpu"
    bandwidth = _bandwidth(watch)
    launch, per_device = _launching(watch, devices)
    link = _link(watch, devices, is_shared=is_shared)
    if link is None:
        link = Link(bandwidth.at(2**20) / 3, launch + per_device)
    measured = "time of its cores" if clock == "cpu" else "time on the clock"
    return Machine(
        name=f"{platform.node() or 'this machine'} ({devices[0].device_kind})",
        peak_flops={"float32": _peak(watch)},
        memory_bandwidth=bandwidth,
        vector_flops=_vector_rate(watch),
        strided_bandwidth=_strided_bandwidth(watch),
        fresh_bandwidth=_first_touch(watch) if is_shared else math.inf,
        memory_bytes=_memory_bytes(devices[0]),
        devices_per_host=len(devices),
        within=link,
        between=link,
        host_link=bandwidth.at(2**22),
        launch_seconds=launch,
        launch_seconds_per_device=per_device,
        shared_compute=is_shared,
        source=f"measured by replicax.calibrate, {measured}",
    )


def _peak(watch: _Stopwatch) -> Curve:
    """Operations a second in products of square matrices, by the operations of one product."""
    multiply = jax.jit(jnp.matmul)
    rates = []
    for width in _WIDTHS:
        matrix = jnp.asarray(np.ones((width, width), np.float32))
        rates.append(2 * width**3 / watch.time(lambda matrix=matrix: multiply(matrix, matrix)))
    return Curve(tuple(2.0 * width**3 for width in _WIDTHS), tuple(rates))


def _bandwidth(watch: _Stopwatch) -> Curve:
    """Bytes a second in reading an array and writing it again, by its bytes."""
    stream = jax.jit(lambda x: 0.9 * x + 1.0, donate_argnums=0)
    rates = []
    for size in _ARRAY_BYTES:
        held = [_matrix(size)]

        def run(held: list[jax.Array] = held) -> jax.Array:
            held[0] = stream(held[0])
            return held[0]

        rates.append(2 * size / watch.time(run))
    return Curve(tuple(map(float, _ARRAY_BYTES)), tuple(rates))


def _matrix(size: int) -> jax.Array:
    return jnp.asarray(np.full((size // 4 // _COLUMNS, _COLUMNS), 0.5, np.float32))


def _vector_rate(watch: _Stopwatch) -> float:
    """Elementwise operations a second in an update as optimizers make it, and in an activation."""

    def update(x: jax.Array) -> tuple[jax.Array, ...]:
        mean, square = 0.9 * x + 0.1, 0.99 * x + 0.01 * x * x
        return mean, square, x - 1e-3 * mean / (jnp.sqrt(square) + 1e-8)

    def activation(x: jax.Array) -> jax.Array:
        return 0.5 * x * (1.0 + jnp.tanh(0.8 * (x + 0.04 * x * x * x)))

    array = _matrix(_CACHED_BYTES)
    rates = []
    for fn in (update, activation):
        elements = read_operations(jax.make_jaxpr(fn)(array)).elements
        compiled = jax.jit(fn)
        rates.append(elements / watch.time(lambda compiled=compiled: compiled(array)))
    return statistics.geometric_mean(rates)


def _strided_bandwidth(watch: _Stopwatch) -> float:
    """Bytes a second in the change of order that attention makes: heads before positions."""
    swap = jax.jit(lambda x: x.transpose(0, 2, 3, 1))
    array = _matrix(_CACHED_BYTES).reshape(4, -1, 4, 64)
    return 2 * array.nbytes / watch.time(lambda: swap(array))


def _first_touch(watch: _Stopwatch) -> float:
    """Bytes a second in writing to memory that the system has just given."""

    def run() -> tuple[()]:
        with mmap.mmap(-1, FRESH_FROM) as fresh:
            np.frombuffer(fresh, np.uint8)[:: mmap.PAGESIZE].fill(1)
        return ()

    return FRESH_FROM / watch.time(run)


def _launching(watch: _Stopwatch, devices: Sequence[Any]) -> tuple[float, float]:
    """Seconds to launch a step that does next to nothing: on one device, and for each further."""
    one = watch.time(_empty_step(devices[:1]))
    if len(devices) == 1:
        return one, 0.0
    every = watch.time(_empty_step(devices))
    return one, max(every - one, 0.0) / (len(devices) - 1)


def _empty_step(devices: Sequence[Any]) -> Callable[[], Any]:
    strategy = MirroredStrategy([f"{device.platform.upper()}:{device.id}" for device in devices])
    with strategy.scope():
        variable = Variable(np.ones(8, np.float32))

    @function
    def step() -> Any:
        variable.assign(variable * 0.5)
        return variable.read_value()[0]

    return step


def _link(watch: _Stopwatch, devices: Sequence[Any], *, is_shared: bool) -> Link | None:
    """How fast devices reach each other, from all-reduces of several sizes; None for one device.

    The model of `costs.timing`: a small one costs latency only, of a large one the rest is bytes.
    """
    if len(devices) == 1:
        return None
    latencies, bandwidths = [], []
    for count in sorted({2, len(devices)}):
        mesh = replica_mesh(tuple(devices[:count]))
        none = watch.time(_all_reduces(mesh, _SMALL, repeats=0))
        small, large = (
            max(watch.time(_all_reduces(mesh, size, repeats=_REPEATS)) - none, 1e-9) / _REPEATS
            for size in (_SMALL, _LARGE)
        )
        messages = count if is_shared else 2 * (count - 1)
        latencies.append(small / messages)
        senders = count if is_shared else 1
        sent = senders * 2 * (count - 1) / count * _LARGE
        bandwidths.append(sent / max(large - small, large / 10))
    return Link(statistics.geometric_mean(bandwidths), statistics.geometric_mean(latencies))


def _all_reduces(mesh: ReplicaMesh, size: int, *, repeats: int) -> Callable[[], Any]:
    """A program with so many all-reduces of so many bytes, each of what the last one gave."""

    def replica(x: jax.Array) -> jax.Array:
        for _ in range(repeats):
            x = jax.lax.psum(x * 0.25, REPLICA_AXIS)
        return jax.lax.psum(x[0, 0], REPLICA_AXIS)

    program = jax.jit(
        jax.shard_map(
            replica,
            mesh=mesh.mesh,
            in_specs=PartitionSpec(REPLICA_AXIS),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )
    array = jax.device_put(np.ones((mesh.num_replicas, size // 4), np.float32), mesh.per_replica)

    def with_token(array: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = program(array)
        return total, total

    return lambda: RUN_AHEAD.launch(with_token, array)


def _memory_bytes(device: Any) -> float:
    """The memory of a device; of one that is part of the processor, that of the machine."""
    stats = device.memory_stats() or {}
    limit = stats.get("bytes_limit")
    if limit:
        return float(limit)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
