"""The table of strategies that every contract test runs over.

A new row is tested without writing a test: give the strategy a name and a
factory. Factories make a new strategy each time where that is possible.
"""

from collections.abc import Callable

import replicax as rx


def mirrored(num_replicas: int) -> rx.MirroredStrategy:
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


def central(num_replicas: int) -> rx.experimental.CentralStorageStrategy:
    """Replicas on the devices after CPU:0, which has the variables."""
    compute = [f"CPU:{i + 1}" for i in range(num_replicas)]
    return rx.experimental.CentralStorageStrategy(compute, "CPU:0")


def num_copies(strategy: rx.Strategy) -> int:
    """How many copies the strategy keeps of a variable that is not sync-on-read."""
    return len(strategy.extended.parameter_devices)


STRATEGIES: dict[str, Callable[[], rx.Strategy]] = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored_1": lambda: mirrored(1),
    "mirrored_2": lambda: mirrored(2),
    "mirrored_3": lambda: mirrored(3),
    "mirrored_8": lambda: mirrored(8),
    "central_2": lambda: central(2),
    "central_3": lambda: central(3),
}
