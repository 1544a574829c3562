"""Properties of distributed input that hold for any pipeline and any number of workers."""

import collections
import itertools
import json
import pathlib
import tempfile

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import replicax as rx
from replicax.core.enums import AutoShardPolicy
from replicax.data import Dataset, TextLineDataset, TFRecordDataset
from replicax.input.adapters.table import source_of
from replicax.input.from_function import PerReplicaBatches, input_contexts
from replicax.input.pipeline.readers import write_records
from replicax.input.source import IndexedSource
from tests.input.pipelines import Cluster
from tests.input.programs import (
    LIMIT,
    Program,
    assert_same_batches,
    batch_sizes,
    batches_read,
    cluster,
    counts,
    dataset_of,
    layouts,
    leaves_of,
    parts_read,
    programs,
    seeds,
    together,
)
from tests.tiers import examples

quick = settings(deadline=None, max_examples=examples(40), database=None)
FILE = AutoShardPolicy.FILE

workers = st.integers(1, 4)
replicas = st.one_of(st.integers(1, 3), st.integers(1, 8))
epochs = st.integers(0, 2)


def chunk_sizes(size, num_replicas):
    """Contiguous chunks of ceil(size / num_replicas), counted one example after another."""
    sizes = [0] * num_replicas
    for number in range(size):
        sizes[number // -(-size // num_replicas)] += 1
    return sizes


# -- the parts of all are the batch of one ------------------------------------------------------


# Whatever else is drawn: shuffles, that all workers must do alike in every pass.
SHUFFLED = Program("dataset", 45, 10, examples=(("shuffle", 9),), batches=(("shuffle", 2),))
SHUFFLED_BY_GRAIN = Program("grain", 45, 10, examples=(("shuffle", 9), ("random map", 3)))


@settings(quick, max_examples=examples(90))
@given(programs(), workers, replicas, epochs, counts)
@example(SHUFFLED, 3, 2, 1, 1)
@example(SHUFFLED_BY_GRAIN, 2, 2, 1, 0)
def test_the_parts_of_all_workers_and_replicas_are_the_batch_of_one_worker(
    program, num_workers, per_worker, epoch, start
):
    whole = batches_read(program.source(), epoch=epoch)
    parts = [
        parts_read(program.source(), topology, epoch=epoch, start=start, limit=LIMIT - start)
        for topology in cluster(num_workers, per_worker)
    ]
    by_replica = [
        [tuple(itertools.chain(*leaf)) for leaf in zip(*step, strict=True)]
        for step in zip(*parts, strict=True)
    ]
    for leaves in by_replica:
        for leaf in leaves:
            size = sum(len(part) for part in leaf)
            assert [len(part) for part in leaf] == chunk_sizes(size, num_workers * per_worker)
    joined = [[np.concatenate(leaf) for leaf in leaves] for leaves in by_replica]
    assert_same_batches(joined, whole[start:])


@quick
@given(programs(kinds=("dataset", "stream", "grain", "grain iter")))
def test_the_batches_are_those_that_the_pipeline_itself_gives(program):
    pipeline = program.make()
    own = [leaves_of(batch) for batch in itertools.islice(iter(pipeline), LIMIT)]
    assert_same_batches(
        batches_read(program.source()),
        [[narrowed(leaf) for leaf in leaves] for leaves in own],
    )


def narrowed(array):
    return array.astype({"int64": np.int32, "float64": np.float32}.get(array.dtype.name))


@settings(quick, max_examples=examples(20))
@given(programs(), replicas)
def test_on_real_devices_every_replica_has_its_part(program, num_replicas):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    dataset = strategy.distribute_dataset(program.source())
    got = []
    for value in itertools.islice(dataset, LIMIT):
        got.append(leaves_of(value))
        first = strategy.experimental_local_results(value)
        assert len(first) == num_replicas
    assert_same_batches(got, batches_read(program.source()))


def test_the_part_of_a_worker_without_examples_has_the_type_of_the_others():
    source = source_of(Dataset.range(5).batch(4))
    steps = [parts_read(source, topology) for topology in cluster(4, 2)]
    types = [{part.dtype for (parts,) in worker for part in parts} for worker in steps]
    assert types == [{np.dtype(np.int32)}] * 4
    no_features = dataset_of(source_of([np.zeros((4, 0))]), cluster(1, 2)[0])
    assert [part.dtype for part in next(iter(no_features)).values] == [np.float32] * 2


# -- every element once -------------------------------------------------------------------------

ONE_TO_ONE = {
    "shuffle": lambda d, n: d.shuffle(n + 2, seed=n),
    "full shuffle": lambda d, n: d.shuffle(100, seed=n),
    "map": lambda d, n: d.map(lambda x: x + 0),
    "threads": lambda d, n: d.map(lambda x: x + 0, num_parallel_calls=2),
    "cache": lambda d, n: d.cache(),
    "prefetch": lambda d, n: d.prefetch(n % 3),
    "filter": lambda d, n: d.filter(lambda x: True),
}


@quick
@given(
    st.integers(0, 40),
    batch_sizes,
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(sorted(ONE_TO_ONE)), counts), max_size=3),
    workers,
    replicas,
)
def test_every_element_appears_exactly_once_in_every_epoch(
    size, batch_size, drop_remainder, steps, num_workers, per_worker
):
    dataset = Dataset.range(size)
    for name, n in steps:
        dataset = ONE_TO_ONE[name](dataset, n)
    source = source_of(dataset.batch(batch_size, drop_remainder))
    for epoch in range(3):
        seen = collections.Counter()
        for topology in cluster(num_workers, per_worker):
            for (parts,) in parts_read(source, topology, epoch=epoch, limit=None):
                seen.update(int(x) for part in parts for x in part)
        dropped = size % batch_size if drop_remainder else 0
        assert set(seen) <= set(range(size))
        assert set(seen.values()) <= {1}
        assert len(seen) == size - dropped


@quick
@given(st.integers(1, 40), batch_sizes, st.one_of(st.none(), seeds), workers, replicas)
def test_no_element_is_read_by_two_workers(size, batch_size, seed, num_workers, per_worker):
    read = collections.Counter()

    def recorded(x):
        read[int(x)] += 1
        return x

    for topology in cluster(num_workers, per_worker):
        dataset = Dataset.range(size).map(recorded)
        dataset = dataset if seed is None else dataset.shuffle(size, seed=seed)
        source = source_of(dataset.batch(batch_size))
        assert isinstance(source, IndexedSource)
        _ = source.element_spec  # computes an example to see its type
        read_before = read.copy()
        steps = parts_read(source, topology, limit=None)
        own = [int(x) for (parts,) in steps for part in parts for x in part]
        assert (read - read_before).total() == len(own)
    assert set(read) == set(range(size))
    assert read.total() == size + num_workers


# -- state --------------------------------------------------------------------------------------


def resumed(program, layout, state, buffer_size):
    """What is left of the pass and the whole pass after it, as global batches."""
    now, later = [], []
    for topology in cluster(*layout):
        dataset = dataset_of(program.source(), topology, buffer_size=buffer_size)
        iterator = iter(dataset)
        iterator.set_state(state)
        now.append([leaves_of(v) for v in itertools.islice(iterator, LIMIT)])
        later.append([leaves_of(v) for v in itertools.islice(dataset, 5)])
        iterator.close()
    return together(now), together(later)


@settings(quick, max_examples=examples(40))
@given(
    programs(),
    epochs,
    st.integers(0, 12),
    layouts(),
    layouts(),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0, 1, 3]),
)
@example(SHUFFLED, 1, 3, (1, 4), (3, 2), 3, 0)
@example(SHUFFLED_BY_GRAIN, 2, 2, (2, 2), (1, 3), 0, 3)
def test_a_state_continues_identically_under_any_number_of_workers_and_replicas(
    program, epoch, position, saved_by, restored_by, buffer_size, later_buffer_size
):
    states = []
    for topology in cluster(*saved_by):
        dataset = dataset_of(program.source(), topology, buffer_size=buffer_size)
        for _ in range(epoch):
            next(iter(dataset), None)
        iterator = iter(dataset)
        taken = len(list(itertools.islice(iterator, position)))
        states.append(json.dumps(iterator.get_state()))
        iterator.close()
    assert len(set(states)) == 1  # the workers agree where they are
    state = json.loads(states[0])
    assert (state["epoch"], state["position"]) == (epoch, taken)

    now, later = resumed(program, restored_by, state, later_buffer_size)
    assert_same_batches(
        now, batches_read(program.source(), epoch=epoch, limit=taken + LIMIT)[taken:]
    )
    assert_same_batches(later, batches_read(program.source(), epoch=epoch + 1, limit=5))


# -- files --------------------------------------------------------------------------------------

# With nothing in any file, the user's function is shown an empty line to learn its type.
file_sizes = st.lists(st.integers(0, 15), min_size=1, max_size=7).filter(any)


class Folder:
    """Files whose records are all different."""

    def __init__(self, path, sizes, kind):
        self.kind = kind
        self.contents = [[100 * i + j for j in range(size)] for i, size in enumerate(sizes)]
        self.paths = []
        for i, numbers in enumerate(self.contents):
            file = pathlib.Path(path, f"{i}.{kind}")
            lines = [str(number).encode() for number in numbers]
            if kind == "text":
                file.write_bytes(b"".join(line + b"\n" for line in lines))
            else:
                write_records(str(file), lines)
            self.paths.append(str(file))

    def dataset(self, batch_size, *, drop_remainder=False):
        reader = TextLineDataset if self.kind == "text" else TFRecordDataset
        return reader(self.paths).map(lambda line: np.int32(line)).batch(batch_size, drop_remainder)


@settings(quick, max_examples=examples(30))
@given(
    file_sizes,
    st.sampled_from(["text", "records"]),
    batch_sizes,
    layouts(),
    st.sampled_from([0, 1, 3]),
)
def test_workers_with_unequal_files_stop_together_and_lose_nothing(
    sizes, kind, batch_size, layout, buffer_size
):
    num_workers, _ = layout
    assume(len(sizes) >= num_workers)
    workers = Cluster(*layout)
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path, sizes, kind)

        def work(topology):
            source = source_of(folder.dataset(batch_size))
            dataset = dataset_of(source, topology, buffer_size=buffer_size, policy=FILE)
            return [[leaves_of(value)[0] for value in dataset] for _ in range(2)]

        for one_pass in zip(*workers.run(work), strict=True):
            assert len({len(steps) for steps in one_pass}) == 1
            got = [x for steps in one_pass for step in steps for x in step.tolist()]
            assert sorted(got) == sorted(itertools.chain(*folder.contents))
            for worker, steps in enumerate(one_pass):
                own = folder.contents[worker::num_workers]
                assert np.concatenate([[], *steps]).tolist() == list(itertools.chain(*own))
            # the shorter ones went on empty, and none of them with all others
            ends = zip(*one_pass, strict=True)
            assert all(any(len(part) for part in step) for step in ends)
    assert len(set(workers.num_asked)) == 1


def test_a_worker_with_empty_files_goes_on_with_empty_batches():
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path, [5, 0], "text")

        def work(topology):
            dataset = dataset_of(source_of(folder.dataset(4)), topology, policy=FILE)
            return [leaves_of(value)[0] for value in dataset]

        first, second = Cluster(2, 1).run(work)
    assert [step.tolist() for step in first] == [[0, 1], [2, 3], [4]]
    assert [(step.shape, step.dtype) for step in second] == [((0,), np.int32)] * 3


@settings(quick, max_examples=examples(20))
@given(file_sizes, batch_sizes, layouts(), st.integers(0, 6), st.sampled_from([0, 3]))
def test_a_state_over_files_continues_identically_with_as_many_workers(
    sizes, batch_size, layout, position, buffer_size
):
    assume(len(sizes) >= layout[0])
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path, sizes, "text")

        def dataset(topology):
            source = source_of(folder.dataset(batch_size))
            return dataset_of(source, topology, buffer_size=buffer_size, policy=FILE)

        def save(topology):
            iterator = iter(dataset(topology))
            taken = len(list(itertools.islice(iterator, position)))
            state = json.dumps(iterator.get_state())
            iterator.close()
            return state, taken

        def whole(topology):
            return [leaves_of(value) for value in dataset(topology)]

        saved = Cluster(*layout).run(save)
        expected = Cluster(*layout).run(whole)

        def resume(topology):
            iterator = iter(dataset(topology))
            iterator.set_state(json.loads(saved[topology.worker_id][0]))
            return [leaves_of(value) for value in iterator]

        for worker, steps in enumerate(Cluster(*layout).run(resume)):
            assert_same_batches(steps, expected[worker][saved[worker][1] :])


# -- functions ----------------------------------------------------------------------------------


@quick
@given(st.integers(0, 40), st.integers(1, 5), layouts(), st.booleans())
def test_pipelines_of_functions_that_shard_lose_nothing(size, batch_size, layout, per_replica):
    seen = collections.Counter()
    for topology in cluster(*layout):
        sources = [
            source_of(
                Dataset.range(size)
                .shard(context.num_input_pipelines, context.input_pipeline_id)
                .batch(batch_size)
            )
            for context in input_contexts(topology, per_replica=per_replica)
        ]
        reading = PerReplicaBatches(sources, topology, per_replica=per_replica)
        steps = list(reading.open(epoch=0, start=0))
        for step in steps:
            parts = step.shares[0].local_parts()
            assert len(parts) == topology.replicas_per_worker
            assert all(len(part) <= batch_size for part in parts)
            seen.update(int(x) for part in parts for x in part)
        if topology.num_workers == 1:
            assert reading.cardinality == len(steps)
    assert seen == collections.Counter(range(size))
