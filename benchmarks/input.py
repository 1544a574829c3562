"""What does a distributed dataset cost, and what does reading ahead save?

Three questions, each asked for several numbers of replicas, with batches of 256 x 784
floats; one JSON object is printed for each row.

memory: batches that are ready in memory, handed out by a distributed dataset, against
    ``jax.device_put`` of the same arrays onto the same devices. `speed` is batches per
    second of the one through those of the other. ``arrays`` is the same for rows of an
    array that belongs to the user, which have to be copied first.
waiting, decompressing: a source that takes some 2 ms for each batch, and a step that
    computes and whose loss is looked at. `speed` is that of the default, which reads
    ahead because the source is slow, through that of a dataset which never reads
    ahead. A source that waits (as for a disk) needs no core, one that decompresses
    needs one for itself: on two cores, of which the step takes both, 1.5 is all there
    is to gain. A loop that does not look at its results overlaps without any help,
    because JAX does not wait for them either.

All are timed in alternating rounds of one process. Wall and CPU time are per batch, in
microseconds, medians over the rounds; a speed is the median of the rounds' ratios. On a
machine that others use too, look at the CPU time of the memory rows.
If TensorFlow is installed, its distributed dataset is measured beside ours, as
``tensorflow``.

Usage: python benchmarks/input.py [--rounds 15] [--replicas 1 2 4 8]
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alternating import KINDS, alternate, environment, median, paired_ratio, parse_options
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import replicax as rx
from replicax.input.source import Source

SHAPE = (256, 784)
NUM_BATCHES = 8
WAIT_SECONDS = 0.002
HIDDEN = 64
SECONDS = 30.0
"""The most that one row may take, after its warm-up."""

Run = Callable[[], Any]


class Ready:
    """What `measure` need not wait for, because the run has done so."""

    def block_until_ready(self) -> None:
        """Nothing to wait for."""


READY = Ready()


class EndlessSource(Source):
    """Makes batches for ever, with arrays that it never touches again.

    Args:
        make: Makes the batch of a number from 0 to `NUM_BATCHES`.
    """

    owns_batches = True

    def __init__(self, make: Callable[[int], np.ndarray]) -> None:
        """Nothing is made yet."""
        self._make = make

    def open(self, *, epoch: int, start: int) -> Iterator[np.ndarray]:
        """Makes them one after the other."""
        del epoch, start
        return (self._make(index) for index in itertools.cycle(range(NUM_BATCHES)))


def ready_batches() -> list[np.ndarray]:
    """What all rows read: few different numbers, so that they can be compressed."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 32, SHAPE).astype(np.float32) / 32 for _ in range(NUM_BATCHES)]


def device_put(devices: Sequence[Any], batches: list[np.ndarray]) -> Run:
    """Each batch onto the devices by hand; returns a function that places one."""
    where: Any = devices[0]
    if len(devices) > 1:
        mesh = Mesh(np.asarray(devices), ("replica",), axis_types=(AxisType.Auto,))
        where = NamedSharding(mesh, PartitionSpec("replica"))
    endless = itertools.cycle(batches)
    return lambda: jax.device_put(next(endless), where)


def from_dataset(dataset: rx.DistributedDataset) -> Run:
    """A function that takes one batch of `dataset`, which does not end."""
    iterator = iter(dataset)

    def run() -> Any:
        value = next(iterator)
        return value._as_packed() if isinstance(value, rx.PerReplica) else value

    return run


class EndlessRows:
    """Batches of a user's array, cut as they are asked for, over and over.

    Args:
        rows: The array.
    """

    def __init__(self, rows: np.ndarray) -> None:
        """Cuts nothing yet."""
        self._rows = rows

    def __iter__(self) -> Iterator[np.ndarray]:
        for index in itertools.cycle(range(NUM_BATCHES)):
            yield self._rows[index * SHAPE[0] : (index + 1) * SHAPE[0]]


def memory_row(devices: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Batches that are ready, against `device_put`."""
    batches = ready_batches()
    strategy = rx.MirroredStrategy(devices)
    runs = {
        "device_put": device_put(devices, batches),
        "replicax": from_dataset(
            strategy.distribute_dataset(EndlessSource(lambda index: batches[index]))
        ),
        "arrays": from_dataset(strategy.distribute_dataset(EndlessRows(np.concatenate(batches)))),
    }
    if has_tensorflow():
        runs["tensorflow"] = tensorflow_batches(len(devices), batches)
    times = alternate(runs, steps=200, warm_up=50, rounds=rounds, seconds=SECONDS)
    row: dict[str, Any] = {}
    for kind in KINDS:
        row |= {f"{name}_{kind}": round(median(times, name, kind), 1) for name in runs}
        for name in ("replicax", "arrays"):
            row[f"{name}_speed_{kind}"] = round(paired_ratio(times, "device_put", name, kind), 2)
    return row


def training(devices: Sequence[Any], source: Source, options: rx.InputOptions) -> Run:
    """A loop over a dataset; returns a function that runs one step and looks at its loss."""
    strategy = rx.MirroredStrategy(devices)
    with strategy.scope():
        w = rx.Variable(np.full((SHAPE[1], HIDDEN), 0.01, np.float32))
    iterator = iter(strategy.distribute_dataset(source, options))

    def replica_step(x: Any) -> Any:
        loss, gradient = rx.value_and_grad(lambda: jnp.mean(jnp.tanh(x @ w) ** 2), w)
        return rx.get_replica_context().all_reduce("MEAN", (loss, gradient))

    @rx.function
    def step(x: Any) -> Any:
        loss, gradient = strategy.run(replica_step, args=(x,))
        w.assign_sub(0.1 * gradient)
        return loss

    def run() -> Any:
        float(step(next(iterator)))
        return READY

    return run


def waiting(batches: list[np.ndarray]) -> Callable[[int], np.ndarray]:
    """Makes a batch by waiting for it."""

    def make(index: int) -> np.ndarray:
        time.sleep(WAIT_SECONDS)
        return batches[index].copy()

    return make


def decompressing(batches: list[np.ndarray]) -> Callable[[int], np.ndarray]:
    """Makes a batch by unpacking it, which leaves the interpreter to others meanwhile."""
    packed = [zlib.compress(batch.tobytes(), level=1) for batch in batches]
    return lambda index: np.frombuffer(zlib.decompress(packed[index]), np.float32).reshape(SHAPE)


def slow_row(
    devices: Sequence[Any], make: Callable[[int], np.ndarray], rounds: int
) -> dict[str, Any]:
    """A slow source, read ahead and not."""
    begin = time.perf_counter()
    for index in range(NUM_BATCHES):
        make(index)
    source_us = 1e6 * (time.perf_counter() - begin) / NUM_BATCHES
    source = EndlessSource(make)
    batches = ready_batches()
    never = rx.InputOptions(experimental_per_replica_buffer_size=0)
    runs = {
        "step_alone": training(devices, EndlessSource(lambda index: batches[index]), never),
        "in_turn": training(devices, source, never),
        "ahead": training(devices, source, rx.InputOptions()),
    }
    times = alternate(runs, steps=50, warm_up=10, rounds=rounds, seconds=SECONDS)
    row = {"source_wall_us": round(source_us, 1)}
    row |= {f"{name}_wall_us": round(median(times, name, "wall_us"), 1) for name in runs}
    row["ahead_speed"] = round(paired_ratio(times, "in_turn", "ahead", "wall_us"), 2)
    return row


def has_tensorflow() -> bool:
    """Whether TensorFlow can be measured too."""
    return importlib.util.find_spec("tensorflow") is not None


def tensorflow_batches(num_replicas: int, batches: list[np.ndarray]) -> Run:
    """The same batches from TensorFlow's distributed dataset."""
    tf: Any = importlib.import_module("tensorflow")
    devices = tf.config.list_logical_devices("CPU")[:num_replicas]
    strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    dataset = tf.data.Dataset.from_tensor_slices(np.stack(batches)).repeat().prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    iterator = iter(strategy.experimental_distribute_dataset(dataset.with_options(options)))

    def run() -> Any:
        next(iterator)
        return READY

    return run


def divide_tensorflow_cpu(num_devices: int) -> None:
    """As many logical CPUs as JAX has; before TensorFlow starts."""
    tf: Any = importlib.import_module("tensorflow")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
    )


def main() -> None:
    """Prints one JSON object per configuration."""
    options = parse_options(__doc__, replicas=[1, 2, 4, 8])
    rx.set_virtual_devices(max(options.replicas))
    if has_tensorflow():
        divide_tensorflow_cpu(max(options.replicas))
    batches = ready_batches()
    for replicas in options.replicas:
        devices = jax.devices()[:replicas]
        for name, measured in {
            "memory": lambda d=devices: memory_row(d, options.rounds),
            "waiting": lambda d=devices: slow_row(d, waiting(batches), options.rounds),
            "decompressing": lambda d=devices: slow_row(d, decompressing(batches), options.rounds),
        }.items():
            row = {"source": name, "replicas": replicas} | measured()
            print(json.dumps(row | environment()), flush=True)


if __name__ == "__main__":
    main()
