"""The table of strategies that every contract test runs over.

A new row is tested without writing a test: give the strategy a name and a
factory. Factories make a new strategy each time where that is possible.
"""

import os
from collections.abc import Callable
from typing import Any

import jax

import replicax as rx

IN_CLUSTER = "REPLICAX_TEST_CLUSTER" in os.environ
"""Whether this process is one of several workers that run the suite together."""


def local_ids(strategy: rx.Strategy) -> range:
    """The replicas of this worker."""
    return strategy.extended.mesh.local_replicas


def mirrored(num_replicas: int, **options: Any) -> rx.MirroredStrategy:
    if IN_CLUSTER:  # its workers have fewer devices
        num_replicas = min(num_replicas, len(jax.local_devices()))
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)], **options)


def central(num_replicas: int) -> rx.experimental.CentralStorageStrategy:
    """Replicas on the devices after CPU:0, which has the variables."""
    compute = [f"CPU:{i + 1}" for i in range(num_replicas)]
    return rx.experimental.CentralStorageStrategy(compute, "CPU:0")


def sharded(num_devices: int, **options: Any) -> rx.MirroredStrategy:
    """Every trainable variable that has a dim is split, the smallest ones too."""

    def split_all(shape: tuple[int, ...], dtype: Any) -> list[int]:
        return [2] * len(shape)

    sharding = rx.experimental.Sharding(stage=3, partitioner=split_all)
    return mirrored(num_devices, sharding=sharding, **options)


def num_copies(strategy: rx.Strategy) -> int:
    """How many copies the strategy keeps of a variable that is not sync-on-read."""
    if IN_CLUSTER:
        return strategy.num_replicas_in_sync
    return len(strategy.extended.parameter_devices)


def multi_worker() -> rx.MultiWorkerMirroredStrategy:
    """All workers of the cluster that run this suite together."""
    return rx.MultiWorkerMirroredStrategy(communication_options=TEST_OPTIONS)


# A worker of a test cluster may be slow on a busy machine, and is no less alive for it.
TEST_OPTIONS = rx.experimental.CommunicationOptions(timeout_seconds=60)

STRATEGIES: dict[str, Callable[[], rx.Strategy]] = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored_1": lambda: mirrored(1),
    "mirrored_2": lambda: mirrored(2),
    "mirrored_3": lambda: mirrored(3),
    "mirrored_8": lambda: mirrored(8),
    "sharded_3": lambda: sharded(3),
    "logical_2x2": lambda: mirrored(4, logical_devices=2),
    "sharded_logical_2x2": lambda: sharded(4, logical_devices=2),
    "central_2": lambda: central(2),
    "central_3": lambda: central(3),
}

if IN_CLUSTER:
    STRATEGIES = {"multi_worker": multi_worker}
