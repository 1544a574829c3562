"""What `explain` says of W2, W3 and W4 is what the compiled program and the live arrays show."""

import collections
import gc

import jax
import pytest
from jax.sharding import PartitionSpec

import replicax as rx
from replicax.costs.program import inspect_step
from tests.costs import hlo
from tests.costs.steps import MODELS, training

LAYOUTS = {
    "plain": {},
    "stage 1": {"sharding": rx.experimental.Sharding(stage=1)},
    "stage 2": {"sharding": rx.experimental.Sharding(stage=2)},
    "stage 3": {"sharding": rx.experimental.Sharding(stage=3)},
    "logical devices": {"logical_devices": 2},
    "pieces": {
        "logical_devices": 2,
        "partition_rules": [(r"^(0|2|4|8|10)$", PartitionSpec("logical_0"))],
    },
}
CASES = [
    pytest.param(model, is_small, marks=[pytest.mark.slow] if model == "W3" or not is_small else [])
    for model in MODELS
    for is_small in (True, False)
]


def strategy_of(layout):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(4)], **LAYOUTS[layout])


def held_by(arrays, device):
    """The bytes on a device; a component that somebody has read is a view of its variable."""
    shards = [shard.data for array in arrays for shard in array.addressable_shards]
    here = [data for data in shards if data.devices() == {device}]
    return sum({data.unsafe_buffer_pointer(): data.nbytes for data in here}.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("model", "is_small"), CASES)
def test_collectives_and_memory_are_those_of_the_compiled_program(model, is_small, layout):
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    strategy = strategy_of(layout)
    step, batch = training.__wrapped__(model, strategy, is_small=is_small)
    gc.collect()
    mine = [array for array in jax.live_arrays() if id(array) not in before]
    found = inspect_step(step, batch, strategy=strategy)

    compiled = step.lower_run(strategy, *batch).compile()
    told = collections.Counter(
        (one.kind, size) for one in found.collectives for size in one.operand_bytes
    )
    assert told == hlo.operands_in(compiled.as_text())
    planned, memory = compiled.memory_analysis(), found.memory
    assert memory.state + memory.arguments == planned.argument_size_in_bytes
    assert memory.temporaries == planned.temp_size_in_bytes
    assert memory.total == (
        planned.argument_size_in_bytes
        + planned.output_size_in_bytes
        - planned.alias_size_in_bytes
        + planned.temp_size_in_bytes
        + planned.generated_code_size_in_bytes
    )
    assert memory.state + memory.arguments == held_by(mine, jax.devices()[0])
    if layout != "pieces":
        assert found.collectives == found.traced_collectives
