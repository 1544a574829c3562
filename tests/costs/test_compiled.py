"""What is read out of the text of a compiled program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from replicax.costs.collectives import ALL_DEVICES, LOGICAL_DEVICES, REPLICAS
from replicax.costs.compiled import collectives_in, read_compiled

MODULE = """HloModule jit_step, num_partitions=8

FileNames
1 "/home/me/train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main (p: bf16[4,8]) -> bf16[4,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %r = bf16[4,8]{1,0} all-reduce(%p), channel_id=1, GROUPS, metadata={stack_frame_id=1}
}
"""

GROUPS = {
    "replica_groups={{0,1,2,3,4,5,6,7}}": (8, ALL_DEVICES),
    "replica_groups={}": (8, ALL_DEVICES),
    "replica_groups={{0,1},{2,3},{4,5},{6,7}}": (2, LOGICAL_DEVICES),
    "replica_groups={{0,2,4,6},{1,3,5,7}}": (4, REPLICAS),
    "replica_groups=[4,2]<=[8]": (2, LOGICAL_DEVICES),
    "replica_groups=[2,4]<=[4,2]T(1,0)": (4, REPLICAS),
    "replica_groups=mesh['a'=4,'b'=2] {'b'}": (2, LOGICAL_DEVICES),
    "replica_groups=mesh['a'=4,'b'=2] {'a'}": (4, REPLICAS),
    "replica_groups=mesh['a'=4,'b'=2] {'a', 'b'}": (8, ALL_DEVICES),
    "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}": (2, LOGICAL_DEVICES),
    "replica_groups=mesh['a'=8] {'a':(4)2}": (2, LOGICAL_DEVICES),
    "replica_groups=mesh['a'=8] {'a':(1)4}": (4, REPLICAS),
}


@pytest.mark.parametrize("groups", GROUPS)
def test_groups_of_devices_in_every_form_that_xla_writes(groups):
    (found,) = collectives_in(MODULE.replace("GROUPS", groups), num_logical_devices=2)
    assert (found.group_size, found.over) == GROUPS[groups]


def test_the_type_the_size_and_the_line_are_read():
    (found,) = collectives_in(MODULE.replace("GROUPS", "replica_groups={}"))
    assert (found.dtypes, found.operand_bytes) == (("bfloat16",), (64,))
    assert found.line == "/home/me/train.py:12"


def mapped(fn):
    mesh = jax.make_mesh((4,), ("replica",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("replica")
    return jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False), mesh


def found_in(fn, shape=(8, 4)):
    program, mesh = mapped(fn)
    sharding = NamedSharding(mesh, PartitionSpec("replica"))
    x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    return read_compiled(jax.jit(program).lower(x).compile()).collectives


def test_kinds_and_sizes_are_those_of_one_device():
    assert [
        (c.kind, c.num_bytes, c.group_size)
        for c in found_in(lambda x: lax.all_gather(x, "replica", tiled=True)[:2])
    ] == [("all-gather", 32, 4)]
    (scattered,) = found_in(lambda x: lax.psum_scatter(jnp.tile(x, (4, 1)), "replica", tiled=True))
    assert (scattered.kind, scattered.num_bytes) == ("reduce-scatter", 128)
    (sent,) = found_in(lambda x: lax.ppermute(x, "replica", [(i, (i + 1) % 4) for i in range(4)]))
    assert (sent.kind, sent.num_bytes) == ("collective-permute", 32)


def test_a_loop_executes_what_is_in_it_as_often_as_xla_knows():
    def rounds(x):
        return lax.fori_loop(0, 5, lambda _, x: lax.psum(jnp.sin(x), "replica"), x)

    def until_large(x):
        grow = lambda x: lax.psum(x, "replica") + 1.0  # noqa: E731
        return lax.while_loop(lambda x: lax.pmax(x.max(), "replica") < 100.0, grow, x)

    assert {c.count for c in found_in(rounds)} == {5}
    assert {c.count for c in found_in(until_large)} == {None}


def test_a_branch_may_be_left_out():
    def branched(x):
        total = lax.psum(x, "replica")
        return lax.cond(total.sum() > 0, lambda: lax.psum(x * x, "replica"), lambda: x)

    assert sorted(c.in_branch for c in found_in(branched)) == [False, True]
