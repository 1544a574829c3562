"""Workers with unequal data stop together, and those that have none left go on empty."""

import numpy as np
import pytest

import replicax as rx
from replicax.core.enums import AutoShardPolicy
from replicax.core.options import InputOptions
from replicax.core.spec import TensorSpec
from replicax.input.dataset import DistributedDataset
from replicax.input.from_function import PerReplicaBatches
from replicax.input.global_batches import GlobalBatches
from replicax.input.sharding import plan_shards
from tests.input.pipelines import Cluster, Files, Stream, batches_of, int_spec, values_of

FILE = AutoShardPolicy.FILE


@pytest.fixture(scope="module")
def mesh():
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(4)]).extended.mesh


def options(buffer_size=0):
    return InputOptions(
        experimental_fetch_to_device=False, experimental_per_replica_buffer_size=buffer_size
    )


def files(sizes, **known):
    contents = {
        f"file-{i}": batches_of(np.arange(100 * i, 100 * i + size), 4)
        for i, size in enumerate(sizes)
    }
    return Files(contents, batch_size=4, **known)


def of_files(mesh, make, buffer_size=0):
    def work(topology):
        reading = GlobalBatches(plan_shards(FILE, make(), topology), topology)
        dataset = DistributedDataset(reading, mesh, topology, options(buffer_size))
        return [values_of(value) for value in dataset]

    return work


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_all_workers_make_as_many_steps_as_the_longest(mesh, buffer_size):
    cluster = Cluster(2, 1)
    first, second = cluster.run(of_files(mesh, lambda: files([7, 3]), buffer_size))
    assert first == [[[0, 1]], [[2, 3]], [[4, 5]], [[6]]]
    assert second == [[[100, 101]], [[102]], [[]], [[]]]
    assert cluster.num_asked == [5, 5]  # once for every step, and once for the end


def test_the_empty_batches_have_the_shape_and_type_of_the_others(mesh):
    def make():
        contents = {"a": [np.ones((4, 3), np.float32)] * 2, "b": [np.ones((4, 3), np.float32)]}
        return Files(contents, batch_size=4)

    def work(topology):
        reading = GlobalBatches(plan_shards(FILE, make(), topology), topology)
        dataset = DistributedDataset(reading, mesh, topology, options())
        return [(value.values[0].shape, value.values[0].dtype.name) for value in dataset]

    _, second = Cluster(2, 2).run(work)
    assert second == [((1, 3), "float32"), ((1, 3), "float32")] * 1 + [((0, 3), "float32")] * 2


def test_a_worker_without_any_data_goes_on_empty_if_the_spec_is_known(mesh):
    known = {"spec": int_spec(None)}
    first, second = Cluster(2, 1).run(of_files(mesh, lambda: files([4, 0], **known)))
    assert first == [[[0, 1]], [[2, 3]]]
    assert second == [[[]], [[]]]


def test_a_worker_without_any_data_and_any_spec_says_so(mesh):
    with pytest.raises(ValueError, match=r"has no data at all on worker 1, while other workers ha"):
        Cluster(2, 1).run(of_files(mesh, lambda: files([2, 0])))


def test_without_data_anywhere_all_stop_at_once(mesh):
    assert Cluster(2, 1).run(of_files(mesh, lambda: files([0, 0]))) == [[], []]


def from_functions(mesh, sizes, make):
    def work(topology):
        reading = PerReplicaBatches([make(sizes[topology.worker_id])], topology, per_replica=False)
        dataset = DistributedDataset(reading, mesh, topology, options())
        return [values_of(value) for value in dataset]

    return work


def test_functions_with_unequal_pipelines_agree_too(mesh):
    work = from_functions(mesh, [5, 2], lambda n: Stream(batches_of(range(n), 1)))
    first, second = Cluster(2, 2).run(work)
    assert first == [[[0], [1]], [[2], [3]], [[4], []]]
    assert second == [[[0], [1]], [[], []], [[], []]]


def test_elements_that_cannot_be_empty_end_with_the_shortest(mesh):
    spec = TensorSpec((), np.int64)
    work = from_functions(mesh, [6, 2], lambda n: Stream(np.arange(n), spec=spec))
    first, second = Cluster(2, 2).run(work)
    assert first == second == [[0, 1]]


def test_a_worker_alone_asks_nobody(mesh):
    cluster = Cluster(1, 2)
    cluster.topologies[0] = type(cluster.topologies[0])(1, 0, 2, None)
    assert len(cluster.run(of_files(mesh, lambda: files([7, 3])))[0]) == 3
    assert cluster.num_asked == [0]


def test_an_iterator_that_has_ended_asks_no_more(mesh):
    cluster = Cluster(2, 1)

    def work(topology):
        reading = GlobalBatches(plan_shards(FILE, files([4, 4]), topology), topology)
        iterator = iter(DistributedDataset(reading, mesh, topology, options()))
        return len(list(iterator)), len(list(iterator))

    assert cluster.run(work) == [(2, 0), (2, 0)]
    assert cluster.num_asked == [3, 3]
