"""The steps that workers make of global batches, for all workers on one machine."""

import itertools
import json

import numpy as np
import pytest

from replicax.core.enums import AutoShardPolicy
from replicax.core.spec import PerReplicaSpec, TensorSpec
from replicax.input.global_batches import GlobalBatches
from replicax.input.sharding import plan_shards
from replicax.input.source import INFINITE, UNKNOWN
from tests.input.pipelines import Files, Indexed, Stream, batches_of, int_spec, parts_of, topologies

OFF, FILE, DATA = AutoShardPolicy.OFF, AutoShardPolicy.FILE, AutoShardPolicy.DATA


def reading(source, topology, policy=DATA):
    return GlobalBatches(plan_shards(policy, source, topology), topology)


def steps(source, topology, policy=DATA, *, epoch=0, start=0):
    opened = reading(source, topology, policy).open(epoch=epoch, start=start)
    return [parts_of(step) for step in opened]


def together(num_workers, replicas_per_worker, make, policy=DATA, **where):
    """What all replicas of all workers have in each step."""
    workers = [
        steps(make(), topology, policy, **where)
        for topology in topologies(num_workers, replicas_per_worker)
    ]
    return [list(itertools.chain(*step)) for step in zip(*workers, strict=True)]


@pytest.mark.parametrize("kind", [Stream, Indexed])
@pytest.mark.parametrize("workers", [(1, 6), (2, 3), (3, 2), (6, 1)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_any_number_of_workers_makes_the_same_steps(kind, workers, shuffled):
    def make():
        return kind(batches_of(range(31), 8), shuffled=shuffled)

    expected = together(1, 6, make, epoch=3)
    assert together(*workers, make, epoch=3) == expected
    assert together(*workers, make, epoch=3, start=2) == expected[2:]
    assert sorted(itertools.chain(*itertools.chain(*expected))) == list(range(31))


def test_an_indexed_source_is_asked_for_its_own_examples_only():
    sources = [Indexed(batches_of(range(10), 8)) for _ in range(2)]
    for source, topology in zip(sources, topologies(2, 2), strict=True):
        steps(source, topology)
    assert [source.parts for source in sources] == [
        [(0, 0, 4), (1, 0, 2)],
        [(0, 4, 8), (1, 2, 2)],
    ]
    assert [source.read for source in sources] == [[], []]


def test_leaves_with_different_batch_dims_are_divided_each_by_itself():
    topology = topologies(1, 2)[0]
    source = Stream([(np.arange(4), np.arange(3))])
    (step,) = reading(source, topology).open(epoch=0, start=0)
    assert [[p.tolist() for p in share.local_parts()] for share in step.shares] == [
        [[0, 1], [2, 3]],
        [[0, 1], [2]],
    ]


def test_a_part_without_the_batch_as_dim_0_is_named():
    class Odd(Indexed):
        def open_parts(self, part_of, *, epoch, start):
            for part in super().open_parts(part_of, epoch=epoch, start=start):
                yield type(part)({"x": part.batch, "table": np.ones(7)}, part.global_size)

    with pytest.raises(
        ValueError, match=r"leaf \['table'\] of a test index has 7 rows where.*batch of 8 has 4"
    ):
        steps(Odd(batches_of(range(8), 8)), topologies(2)[0])


def test_scalars_are_refused_before_anything_is_read():
    source = Stream([], spec={"n": TensorSpec((), np.int64)})
    with pytest.raises(
        ValueError, match=r"leaf \['n'\] of a test stream is a scalar of type int64"
    ):
        reading(source, topologies(1, 2)[0])
    with pytest.raises(ValueError, match=r"is a scalar and cannot be divided.*Batch the examples"):
        steps(Stream([np.int64(3)]), topologies(1, 2)[0])


# -- policies that keep the size of a full batch -----------------------------------------------


@pytest.mark.parametrize("policy", [OFF, FILE, AutoShardPolicy.HINT])
def test_a_short_batch_keeps_the_per_replica_size(policy):
    topology = topologies(1, 2)[0]
    source = Stream(batches_of(range(14), 8))
    assert steps(source, topology, policy)[1] == [[8, 9, 10, 11], [12, 13]]
    assert steps(source, topology, DATA)[1] == [[8, 9, 10], [11, 12, 13]]


def test_the_declared_batch_size_counts_also_when_no_batch_is_full():
    topology = topologies(1, 2)[0]
    assert steps(Stream([np.arange(5)], batch_size=8), topology, OFF) == [[[0, 1, 2, 3], [4]]]
    assert steps(Stream([np.arange(5)]), topology, OFF) == [[[0, 1, 2], [3, 4]]]


def test_leaves_of_different_sizes_are_divided_evenly():
    topology = topologies(1, 2)[0]
    source = Stream([(np.arange(8), np.arange(3)), (np.arange(6), np.arange(2))])
    second = list(reading(source, topology, OFF).open(epoch=0, start=0))[1]
    assert [share.shapes for share in second.shares] == [((3,), (3,)), ((1,), (1,))]


def test_without_sharding_every_worker_reads_everything_in_its_share_of_a_batch():
    for topology in topologies(2, 2):
        source = Stream(batches_of(range(14), 8), batch_size=8)
        assert steps(source, topology, OFF) == [
            [[0, 1], [2, 3]],
            [[4, 5], [6, 7]],
            [[8, 9], [10, 11]],
            [[12, 13], []],
        ]


def test_each_worker_reads_its_files_in_shares_of_a_batch():
    contents = {name: batches_of(range(i * 10, i * 10 + 6), 4) for i, name in enumerate("abc")}
    both = [steps(Files(contents, batch_size=4), topology, FILE) for topology in topologies(2, 1)]
    assert both[0] == [[[0, 1]], [[2, 3]], [[4, 5]], [[20, 21]], [[22, 23]], [[24, 25]]]
    assert both[1] == [[[10, 11]], [[12, 13]], [[14, 15]]]


def test_a_share_is_never_without_examples():
    for topology in topologies(4, 1):
        assert steps(Stream([np.arange(2)]), topology, OFF) == [[[0]], [[1]]]


def test_batches_of_different_widths_are_never_joined():
    source = Stream([np.ones((3, 2)), np.ones((4, 5))], batch_size=4)
    shapes = [
        [share.local_shapes for share in step.shares]
        for step in reading(source, topologies(2, 1)[0], OFF).open(epoch=0, start=0)
    ]
    assert shapes == [[((2, 2),)], [((1, 2),)], [((2, 5),)], [((2, 5),)]]


def test_the_parts_of_other_workers_are_taken_to_be_full():
    source = Stream(batches_of(range(7), 8), batch_size=8)
    last = list(reading(source, topologies(2, 2)[1], OFF).open(epoch=0, start=0))[-1]
    assert last.shares[0].shapes == ((2,), (2,), (2,), (1,))


def test_a_step_without_examples_is_as_wide_as_those_of_other_workers():
    own = reading(Stream([], batch_size=8, spec=int_spec(None, 3)), topologies(2, 2)[0], OFF)
    step = own.empty_step(own.expected_type())
    assert step.shares[0].shapes == ((0, 3), (0, 3), (2, 3), (2, 3))


# -- what is known without reading -------------------------------------------------------------

SPECS = {
    "every batch full and divisible": (int_spec(8), DATA, (1, 2), 4),
    "batches of any size": (int_spec(None), DATA, (1, 2), None),
    "not divisible": (int_spec(5), DATA, (1, 2), None),
    "over all workers": (int_spec(8), DATA, (2, 2), 2),
    "full size kept": (int_spec(8), OFF, (1, 2), 4),
    "a worker may run out": (int_spec(8), OFF, (2, 2), None),
}


@pytest.mark.parametrize("case", SPECS)
def test_the_spec_has_a_fixed_size_only_where_every_part_has_it(case):
    spec, policy, workers, size = SPECS[case]
    topology = topologies(*workers)[0]
    own = reading(Indexed([], spec={"x": spec}), topology, policy)
    expected = PerReplicaSpec(*[TensorSpec((size,), np.int32)] * topology.num_replicas)
    assert own.element_spec == {"x": expected}


def test_the_spec_of_one_replica_is_bare():
    own = reading(Stream([], spec=int_spec(5, 3)), topologies(1, 1)[0])
    assert own.element_spec == TensorSpec((5, 3), np.int32)


def test_the_steps_are_counted_where_all_workers_share_every_batch():
    for count in (7, INFINITE, UNKNOWN):
        assert reading(Indexed([], cardinality=count), topologies(2, 2)[0]).cardinality == count
    assert reading(Stream([], cardinality=7), topologies(2)[0], OFF).cardinality == UNKNOWN
    assert reading(Stream([], cardinality=7), topologies(1, 2)[0], OFF).cardinality == 7


# -- state -------------------------------------------------------------------------------------


def test_the_state_of_shared_batches_says_nothing_of_workers():
    for kind in (Stream, Indexed):
        own = reading(kind(batches_of(range(8), 4)), topologies(2, 2)[0])
        assert own.state() == {}
        own.adopt({})


def test_a_state_of_own_streams_is_for_as_many_workers():
    two, three = topologies(2)[0], topologies(3)[0]
    make = lambda: Stream(batches_of(range(12), 6), batch_size=6)  # noqa: E731
    state = reading(make(), two, OFF).state()
    assert json.loads(json.dumps(state)) == {
        "num_workers": 2,
        "batch_size": 6,
        "examples_per_step": 3,
    }
    reading(make(), two, OFF).adopt(state)
    with pytest.raises(ValueError, match=r"where 2 workers read streams.*here 3 workers read stre"):
        reading(make(), three, OFF).adopt(state)
    with pytest.raises(ValueError, match=r"2 workers read streams.*here all workers share every"):
        reading(make(), two, DATA).adopt(state)
    with pytest.raises(ValueError, match=r"where all workers share every batch; here 2 workers"):
        reading(make(), two, OFF).adopt({})
    with pytest.raises(ValueError, match="takes 3 examples a step; here it takes 4"):
        reading(Stream([], batch_size=8), two, OFF).adopt(state)


def test_the_size_of_a_full_batch_is_part_of_the_state_if_only_reading_told_it():
    topology = topologies(1, 2)[0]
    source = Stream(batches_of(range(14), 8))
    first = reading(source, topology, OFF)
    next(first.open(epoch=0, start=0))
    resumed = reading(source, topology, OFF)
    resumed.adopt(first.state())
    rest = [parts_of(step) for step in resumed.open(epoch=0, start=1)]
    assert rest == [[[8, 9, 10, 11], [12, 13]]]


def test_own_streams_continue_in_the_middle_of_a_batch():
    topology = topologies(2, 1)[0]
    make = lambda: Stream(batches_of(range(14), 8), batch_size=8)  # noqa: E731
    for start in range(5):
        assert steps(make(), topology, OFF, start=start) == steps(make(), topology, OFF)[start:]


def test_closing_a_reading_closes_the_source():
    for policy, workers in ((DATA, 1), (OFF, 2)):
        source = Stream(batches_of(range(8), 2), batch_size=2)
        opened = reading(source, topologies(workers)[0], policy).open(epoch=0, start=0)
        next(opened)
        assert source.closed == 0
        opened.close()
        assert source.closed == 1
