"""Three epochs of `fit`, in the scope and after it, give the weights and figures of one device."""

import functools
from typing import Any

import pytest

import replicax as rx
from tests.integrations.keras import models
from tests.integrations.keras.problem import mirrored
from tests.tiers import full_only

QUICK = {("convnet", "adam", 2), ("several outputs", "adamw", 3), ("transformer", "sgd", 2)}
CASES = [
    (task, optimizer, num_replicas)
    for task in models.TASKS
    for optimizer in models.OPTIMIZERS
    for num_replicas in (1, 2, 3, 8)
]


@functools.cache
def on_one_device(task: str, optimizer: str) -> tuple[Any, dict[str, list[float]]]:
    return models.trained(task, optimizer)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("task", "optimizer", "num_replicas"),
    [case if case in QUICK else full_only(*case) for case in CASES],
)
def test_fit_gives_what_it_gives_on_one_device(
    task: str, optimizer: str, num_replicas: int
) -> None:
    found = models.trained(task, optimizer, mirrored(num_replicas))
    models.require_near(found, on_one_device(task, optimizer))


SPLIT = {
    **{
        f"stage {stage}": lambda stage=stage: rx.MirroredStrategy(
            ["CPU:0", "CPU:1"], sharding=rx.experimental.Sharding(stage=stage)
        )
        for stage in (1, 2, 3)
    },
    "2 x 2 logical devices": lambda: rx.MirroredStrategy(
        [f"CPU:{index}" for index in range(4)],
        logical_devices=2,
        partition_rules={"dense.*/kernel$": [1, 2], "lstm.*kernel$": [1, 2]},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", models.TASKS)
@pytest.mark.parametrize("name", SPLIT)
def test_state_in_parts_gives_what_one_device_gives(name: str, task: str) -> None:
    found = models.trained(task, "adam", SPLIT[name]())
    models.require_near(found, on_one_device(task, "adam"), 1e-4)
