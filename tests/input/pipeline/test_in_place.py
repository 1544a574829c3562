"""Batches of arrays in memory: copied when the dataset is made, and not again in order."""

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.backend import host_memory
from replicax.data import Dataset, Options
from replicax.input.adapters.pipeline import source_of
from replicax.input.pipeline import sources
from replicax.input.pipeline.stage import Choosing
from tests.performance.counting import mirrored

WIDTH = 16  # rows of one float32 alignment


def rows_of(count, width=WIDTH):
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def memory_of(dataset):
    """The arrays that a dataset reads."""
    stage = dataset._stage
    while stage.inputs:
        stage = stage.input
    return stage.arrays


def places(value):
    """Where the parts of a value begin in memory, and their bytes."""
    array = value._as_packed() if isinstance(value, rx.PerReplica) else value
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def host(strategy, value):
    return np.concatenate([np.asarray(x) for x in strategy.experimental_local_results(value)])


# -- the copy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_later_write_to_the_users_array_is_not_seen(num_replicas):
    strategy, array = mirrored(num_replicas), rows_of(8)
    expected = array.copy()
    iterator = iter(strategy.distribute_dataset(Dataset.from_tensor_slices(array).batch(4)))
    first = next(iterator)
    array[...] = -1
    np.testing.assert_array_equal(host(strategy, first), expected[:4])
    np.testing.assert_array_equal(host(strategy, next(iterator)), expected[4:])


def test_a_later_write_is_not_seen_by_a_plain_loop_either():
    array = rows_of(3)
    dataset = Dataset.from_tensor_slices({"x": array, "y": array[:, 0]})
    expected = array.copy()
    array[...] = -1
    for index, row in enumerate(dataset):
        np.testing.assert_array_equal(row["x"], expected[index])
        assert row["y"] == expected[index, 0]


def test_large_arrays_are_read_where_they_are(monkeypatch):
    monkeypatch.setattr(sources, "MAX_COPIED_BYTES", rows_of(8).nbytes)
    strategy, fits, large = mirrored(2), rows_of(8), rows_of(9)
    assert not np.shares_memory(memory_of(Dataset.from_tensor_slices(fits)), fits)
    dataset = Dataset.from_tensor_slices(large).batch(4)
    assert np.shares_memory(memory_of(dataset), large)
    iterator = iter(strategy.distribute_dataset(dataset))
    first = next(iterator)
    large[...] = -1
    np.testing.assert_array_equal(host(strategy, first), rows_of(4))
    np.testing.assert_array_equal(host(strategy, next(iterator)), np.full((4, WIDTH), -1))


def test_the_limit_is_for_all_arrays_together(monkeypatch):
    monkeypatch.setattr(sources, "MAX_COPIED_BYTES", rows_of(8).nbytes)
    x, y = rows_of(4), rows_of(4)
    assert not np.shares_memory(memory_of(Dataset.from_tensor_slices((x, y)))[0], x)
    x, y = rows_of(5), rows_of(5)
    assert np.shares_memory(memory_of(Dataset.from_tensor_slices((x, y)))[0], x)


def test_a_file_mapped_into_memory_is_not_read_before_its_turn(tmp_path):
    np.save(tmp_path / "x.npy", rows_of(8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    strategy = mirrored(2)
    dataset = Dataset.from_tensor_slices({"x": mapped[2:]}).batch(4)
    mapped[...] = 5
    batch = next(iter(strategy.distribute_dataset(dataset)))
    np.testing.assert_array_equal(host(strategy, batch["x"]), np.full((4, WIDTH), 5))


LAYOUTS = {
    "plain": lambda x: x,
    "columns": np.asfortranarray,
    "backwards": lambda x: x[::-1],
    "every other": lambda x: np.repeat(x, 2, axis=0)[::2],
    "swapped bytes": lambda x: x.astype(">f4"),
    "without elements": lambda x: x[:, :0],
}


@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_any_layout_are_gathered(layout, is_copied, monkeypatch):
    monkeypatch.setattr(sources, "MAX_COPIED_BYTES", 2**30 if is_copied else -1)
    array = LAYOUTS[layout](rows_of(8))
    shuffled = Dataset.from_tensor_slices(array).shuffle(8, reshuffle_each_iteration=False)
    gathered = np.concatenate(list(shuffled.batch(3)))
    np.testing.assert_array_equal(gathered, np.stack(list(shuffled)))
    assert sorted(gathered.tolist()) == sorted(array.tolist())


def test_arrays_of_another_layout_are_copied_in_order():
    array = np.asfortranarray(rows_of(8))[::-1]
    strategy = mirrored(2)
    dataset = Dataset.from_tensor_slices(array).batch(8)
    (batch,) = strategy.distribute_dataset(dataset)
    np.testing.assert_array_equal(host(strategy, batch), rows_of(8)[::-1])


# -- no other copy -----------------------------------------------------------------------------

IN_ORDER = {
    "batch": lambda data: data.batch(4),
    "repeated": lambda data: data.batch(4).repeat(2),
    "in one pass of several": lambda data: data.repeat(2).batch(4),
    "held": lambda data: data.cache().batch(4).prefetch(2).with_options(Options()),
    "a part": lambda data: data.take(8).skip(0).batch(4),
}


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.parametrize("name", IN_ORDER)
def test_batches_in_order_are_placed_where_they_are(name, num_replicas):
    strategy = mirrored(num_replicas)
    dataset = IN_ORDER[name](Dataset.from_tensor_slices(rows_of(8)))
    start = memory_of(dataset).__array_interface__["data"][0]
    assert start % host_memory.ALIGNMENT == 0
    part = rows_of(4).nbytes // num_replicas
    distributed = strategy.distribute_dataset(dataset)
    for _ in range(2):
        for step, batch in enumerate(distributed):
            first = start + (step % 2) * rows_of(4).nbytes
            assert places(batch) == [first + i * part for i in range(num_replicas)]
            np.testing.assert_array_equal(
                host(strategy, batch), rows_of(8)[step % 2 * 4 : step % 2 * 4 + 4]
            )


def test_every_leaf_of_a_nest_is_placed_where_it_is():
    strategy = mirrored(2)
    dataset = Dataset.zip(
        {"x": Dataset.from_tensor_slices(rows_of(8)), "y": Dataset.from_tensor_slices(rows_of(9))}
    )
    batch = next(iter(strategy.distribute_dataset(dataset.batch(4))))
    for stage, name in zip(dataset._stage.inputs, ("x", "y"), strict=True):
        assert places(batch[name])[0] == stage.arrays.__array_interface__["data"][0]


def test_a_worker_is_given_its_part_where_it_is():
    dataset = Dataset.from_tensor_slices(rows_of(10)).batch(4)
    source = source_of(dataset)
    parts = list(source.open_parts(lambda size: slice(size // 2, size), epoch=0, start=1))
    assert [part.global_size for part in parts] == [4, 2]
    for part, rows in zip(parts, (slice(6, 8), slice(9, 10)), strict=True):
        assert np.shares_memory(part.batch, memory_of(dataset))
        np.testing.assert_array_equal(part.batch, rows_of(10)[rows])


# -- right also where a copy is needed ---------------------------------------------------------

OTHERS = {
    **IN_ORDER,
    "an uneven end": lambda data: data.batch(5).repeat(3),
    "over the end of a pass": lambda data: data.repeat(3).batch(3),
    "without end": lambda data: data.repeat().batch(3).take(7),
    "every other": lambda data: data.shard(2, 1).batch(2),
    "a middle": lambda data: data.skip(1).take(6).batch(4),
    "shuffled": lambda data: data.shuffle(8, seed=1).batch(3),
    "ends of a window in place": lambda data: data.shuffle(3, seed=4).batch(3),
    "shuffled batches": lambda data: data.batch(3).shuffle(3, seed=1).repeat(2),
    "zipped": lambda data: Dataset.zip(data, Dataset.range(7)).batch(3),
    "single rows": lambda data: data.batch(1),
}


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
@pytest.mark.parametrize("width", [WIDTH, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_the_devices_get_what_a_plain_loop_gets(name, width, num_replicas):
    strategy = mirrored(num_replicas)
    dataset = OTHERS[name](Dataset.from_tensor_slices(rows_of(8, width)))
    distributed = strategy.distribute_dataset(dataset)
    for _ in range(2):
        expected = list(dataset)
        found = [jax.tree_util.tree_map(lambda v: host(strategy, v), b) for b in distributed]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            jax.tree_util.tree_map(np.testing.assert_array_equal, one, other)


def test_a_permuted_window_with_its_ends_in_place_is_no_view():
    dataset = Dataset.from_tensor_slices(rows_of(4))
    for seed in range(200):
        shuffled = dataset.shuffle(4, seed=seed).batch(4)
        (batch,) = source_of(shuffled).open(epoch=0, start=0)
        (expected,) = shuffled
        np.testing.assert_array_equal(batch, expected)


@pytest.mark.parametrize("name", OTHERS)
def test_one_place_is_found_as_many_are(name):
    stage = OTHERS[name](Dataset.from_tensor_slices(rows_of(8)))._stage
    seen = 0
    while stage.inputs:
        if isinstance(stage, Choosing):
            seen += 1
            for epoch in (0, 3, 2**63, 2**64 - 1):
                positions = np.arange(2)
                many = np.full(2, epoch, np.uint64).view(np.int64)
                epochs, located = stage.locate(many, positions)
                for position in range(2):
                    one = stage.locate(epoch, position)
                    assert one[0] % 2**64 == int(epochs[position]) % 2**64
                    assert one[1] == located[position]
        stage = stage.inputs[0]
    assert seen or name in ("batch", "an uneven end", "zipped", "single rows")


# -- nobody else can change the memory ---------------------------------------------------------


def test_a_function_after_batch_may_write_to_its_batch():
    def doubled(batch):
        batch *= 2
        return batch

    strategy = mirrored(2)
    dataset = Dataset.from_tensor_slices(rows_of(8)).batch(4).map(doubled)
    distributed = strategy.distribute_dataset(dataset)
    for _ in range(2):
        found = np.concatenate([host(strategy, batch) for batch in distributed])
        np.testing.assert_array_equal(found, 2 * rows_of(8))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_batches_that_stay_on_the_host_belong_to_the_user(num_replicas):
    strategy = mirrored(num_replicas)
    options = rx.InputOptions(experimental_fetch_to_device=False)
    dataset = Dataset.from_tensor_slices(rows_of(8)).batch(4)
    distributed = strategy.distribute_dataset(dataset, options)
    for _ in range(2):
        for step, batch in enumerate(distributed):
            for place, part in enumerate(strategy.experimental_local_results(batch)):
                size = 4 // num_replicas
                first = 4 * step + size * place
                np.testing.assert_array_equal(part, rows_of(8)[first : first + size])
                part[...] = -1


def test_strings_belong_to_the_user():
    strategy = mirrored(2)
    dataset = strategy.distribute_dataset(Dataset.from_tensor_slices(["a", "b"]).batch(2))
    for _ in range(2):
        (batch,) = dataset
        parts = strategy.experimental_local_results(batch)
        assert [part.tolist() for part in parts] == [[b"a"], [b"b"]]
        parts[0][0] = b"changed"


def test_a_program_that_is_given_a_batch_for_good_does_not_write_to_the_memory():
    strategy = mirrored(1)
    dataset = Dataset.from_tensor_slices(rows_of(8)).batch(4)
    distributed = strategy.distribute_dataset(dataset)
    increase = jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(2):
        found = np.concatenate([increase(batch) for batch in distributed])
        np.testing.assert_array_equal(found, rows_of(8) + 1)
    np.testing.assert_array_equal(memory_of(dataset), rows_of(8))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_variable_that_was_given_a_batch_does_not_write_to_the_memory(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = rx.Variable(
            np.zeros((4 // num_replicas, WIDTH), np.float32),
            aggregation=rx.VariableAggregation.MEAN,
        )

    @rx.function
    def store(x):
        strategy.run(lambda x: w.assign(x), args=(x,))

    @rx.function
    def increase():
        w.assign(w + 1.0)

    dataset = Dataset.from_tensor_slices(rows_of(8)).batch(4)
    for batch in strategy.distribute_dataset(dataset):
        store(batch)
        increase()
        increase()
    np.testing.assert_array_equal(memory_of(dataset), rows_of(8))
