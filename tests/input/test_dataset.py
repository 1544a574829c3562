"""A distributed dataset as an object: passes, specs, counts, and what it refuses."""

import gc
import weakref

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import OutOfRangeError
from replicax.core.spec import PerReplicaSpec, TensorSpec
from replicax.input.source import INFINITE
from tests.input.pipelines import Indexed, OneShot, Stream, batches_of, int_spec, values_of


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def one():
    return rx.MirroredStrategy(["CPU:1"])


def all_of(dataset):
    return [values_of(value) for value in dataset]


SIX = [[[0, 1], [2, 3]], [[4], [5]]]


# -- passes ------------------------------------------------------------------------------------


def test_every_iteration_is_a_pass_of_its_own(two):
    source = Stream(batches_of(range(6), 4))
    dataset = two.distribute_dataset(source)
    assert [all_of(dataset), all_of(dataset)] == [SIX, SIX]
    assert source.opened == [(0, 0), (1, 0)]


def test_a_shuffled_source_is_shuffled_anew_in_every_pass(two):
    dataset = two.distribute_dataset(Stream(batches_of(range(40), 2), shuffled=True))
    first, second = all_of(dataset), all_of(dataset)
    assert first != second
    assert sorted(first) == sorted(second)


def test_iterators_at_the_same_time_do_not_disturb_each_other(two):
    dataset = two.distribute_dataset(Stream(batches_of(range(6), 4)))
    first, second = iter(dataset), iter(dataset)
    got = [values_of(next(iterator)) for iterator in (first, second, first, second)]
    assert got == [SIX[0], SIX[0], SIX[1], SIX[1]]


def test_an_iterator_keeps_its_dataset_and_the_dataset_no_iterator(two):
    dataset = two.distribute_dataset(Stream(batches_of(range(6), 4)))
    iterator = iter(dataset)
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None
    kept = weakref.ref(dataset)
    iterator = iter(dataset)
    del dataset
    gc.collect()
    assert kept() is not None
    assert all_of(iterator) == SIX


def test_one_replica_gets_bare_arrays_on_its_device(one):
    dataset = one.distribute_dataset(Stream(batches_of(range(6), 4)))
    batches = list(dataset)
    assert all(isinstance(batch, jax.Array) for batch in batches)
    assert [batch.devices() for batch in batches] == [{jax.devices()[1]}] * 2
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]


def test_an_empty_source_has_no_steps(two):
    assert all_of(two.distribute_dataset(Stream([]))) == []


def test_nests_keep_their_form(two):
    batch = {"a": np.arange(4), "b": ({"c": np.ones((4, 2))}, None)}
    (value,) = two.distribute_dataset(Stream([batch]))
    assert jax.tree_util.tree_structure(batch).num_leaves == 2
    assert values_of(value["a"]) == [[0, 1], [2, 3]]
    assert value["b"][1] is None
    assert value["b"][0]["c"].shapes == ((2, 2), (2, 2))


def test_leaves_may_differ_in_their_batch_dim(two):
    ((a, b),) = two.distribute_dataset(Stream([(np.arange(4), np.arange(3))]))
    assert (values_of(a), values_of(b)) == ([[0, 1], [2, 3]], [[0, 1], [2]])


def test_strings_stay_on_the_host(two, one):
    (value,) = two.distribute_dataset(Stream([np.array([b"a", b"b", b"c"])]))
    assert [type(part) for part in value.values] == [np.ndarray] * 2
    assert values_of(value) == [[b"a", b"b"], [b"c"]]
    (bare,) = one.distribute_dataset(Stream([np.array(["a"], object)]))
    assert type(bare) is np.ndarray


# -- get_next and the rest ---------------------------------------------------------------------


def test_get_next_ends_with_an_error_each_time_it_is_asked(two):
    iterator = iter(two.distribute_dataset(Stream(batches_of(range(6), 4))))
    assert [values_of(iterator.get_next()), values_of(iterator.next())] == SIX
    for _ in range(2):
        with pytest.raises(OutOfRangeError, match=r"the iterator has ended, after 2 steps\. Make"):
            iterator.get_next()
        with pytest.raises(IndexError, match="Make a new one for every epoch"):
            iterator.get_next()


def test_an_optional_has_a_value_until_the_end(two):
    iterator = iter(two.distribute_dataset(Stream(batches_of(range(6), 4))))
    for expected in SIX:
        optional = iterator.get_next_as_optional()
        assert optional.has_value()
        assert values_of(optional.get_value()) == expected
        assert "Array" in repr(optional)
    for _ in range(2):
        optional = iterator.get_next_as_optional()
        assert not optional.has_value()
        assert repr(optional) == "Optional()"
        with pytest.raises(OutOfRangeError, match=r"has no value.*Ask has_value\(\) first"):
            optional.get_value()


def test_an_exhausted_iterator_stays_at_its_end(two):
    iterator = iter(two.distribute_dataset(Stream(batches_of(range(6), 4))))
    assert len(list(iterator)) == 2
    assert list(iterator) == []


def test_reduce_goes_over_one_pass(two):
    dataset = two.distribute_dataset(Stream(batches_of(range(6), 4)))

    def add(total, batch):
        return total + two.reduce("SUM", batch, axis=0)

    assert [int(dataset.reduce(0, add)), int(dataset.reduce(100, add))] == [15, 115]


def test_initialize_starts_over_with_a_new_pass(two):
    source = Stream(batches_of(range(6), 4))
    iterator = iter(two.distribute_dataset(source))
    next(iterator)
    iterator.initialize()
    assert all_of(iterator) == SIX
    iterator.initialize()
    assert all_of(iterator) == SIX
    assert source.opened == [(0, 0), (1, 0), (2, 0)]


# -- what is known -----------------------------------------------------------------------------


def test_len_and_cardinality_where_they_are_known(two):
    dataset = two.distribute_dataset(Stream(batches_of(range(6), 4), cardinality=2))
    assert (len(dataset), dataset.cardinality) == (2, 2)


def test_len_says_why_it_is_not_known(two):
    unknown = two.distribute_dataset(Stream([]))
    assert unknown.cardinality == -2
    with pytest.raises(
        TypeError, match=r"has no len\(\): how many steps a test stream has is know"
    ):
        len(unknown)
    endless = two.distribute_dataset(Stream([], cardinality=INFINITE))
    assert endless.cardinality == -1
    with pytest.raises(TypeError, match=r"has no len\(\): a test stream never ends"):
        len(endless)
    assert bool(unknown) and bool(two.distribute_dataset(Stream([], cardinality=0)))


def test_the_spec_is_that_of_the_source_and_nothing_is_read(two):
    source = Indexed(batches_of(range(8), 4), spec={"x": int_spec(4)})
    dataset = two.distribute_dataset(source)
    expected = {"x": PerReplicaSpec(*[TensorSpec((2,), np.int32)] * 2)}
    assert dataset.element_spec == expected
    assert iter(dataset).element_spec == expected
    assert source.opened == []


def test_a_source_that_cannot_tell_is_read_once_for_its_spec(two, one):
    source = OneShot(batches_of(np.arange(12).reshape(6, 2), 4))
    dataset = two.distribute_dataset(source)
    expected = PerReplicaSpec(*[TensorSpec((None, 2), np.int32)] * 2)
    assert [dataset.element_spec, dataset.element_spec] == [expected] * 2
    assert [np.concatenate(step).shape for step in all_of(dataset)] == [(4, 2), (2, 2)]
    assert source.opened == [(0, 0)]
    with pytest.raises(ValueError, match=r"was read before\. Pass the function"):
        next(iter(dataset))
    bare = one.distribute_dataset(Stream(batches_of(range(6), 4)))
    assert bare.element_spec == TensorSpec((None,), np.int32)


def test_what_was_read_for_the_spec_goes_to_the_first_pass_only(two):
    source = Stream(batches_of(range(6), 4))
    dataset = two.distribute_dataset(source)
    assert dataset.element_spec is not None
    first, second = iter(dataset), iter(dataset)
    assert [all_of(second), all_of(first)] == [SIX, SIX]
    assert source.opened == [(0, 0), (1, 0)]


def test_what_was_read_for_the_spec_is_handed_out_once(two):
    dataset = two.distribute_dataset(Stream(batches_of(range(6), 4)))
    assert dataset.element_spec is not None
    first = iter(dataset)
    assert all_of(first) == SIX
    first.set_state({"version": 1, "epoch": 0, "position": 0})
    assert all_of(first) == SIX


def test_a_pass_tells_the_spec_too(two):
    source = Stream(batches_of(range(6), 4))
    dataset = two.distribute_dataset(source)
    next(iter(dataset))
    assert dataset.element_spec == PerReplicaSpec(*[TensorSpec((None,), np.int32)] * 2)
    assert source.opened == [(0, 0)]


def test_an_empty_source_cannot_tell_its_spec(two):
    dataset = two.distribute_dataset(Stream([]))
    with pytest.raises(ValueError, match="a test stream is empty, so nothing tells the shapes"):
        _ = dataset.element_spec
    assert all_of(dataset) == []


def test_the_spec_is_an_input_signature(two):
    dataset = two.distribute_dataset(Stream([(np.ones((4, 2)), np.arange(4))] * 2))

    @rx.function(input_signature=[dataset.element_spec])
    def step(batch):
        x, y = batch
        return x.sum() + y.sum()

    got = [two.reduce("SUM", two.run(step, args=(batch,)), axis=None) for batch in dataset]
    assert [float(total) for total in got] == [14.0, 14.0]
    with pytest.raises(ValueError, match="does not match"):
        two.run(step, args=((np.ones((2, 3), np.float32), np.arange(2, dtype=np.int32)),))


def test_reprs_show_shapes_and_types(two, one):
    spec = {"x": int_spec(4, 3), "y": TensorSpec((None,), np.float64)}
    dataset = two.distribute_dataset(Stream([], spec=spec))
    shown = "shapes: {'x': (2, 3), 'y': (None,)}, types: {'x': int32, 'y': float32}"
    assert repr(dataset) == f"<DistributedDataset of 2 replicas, {shown}>"
    assert repr(iter(dataset)) == f"<DistributedIterator at step 0 of pass 0 over {dataset!r}>"
    unread = one.distribute_dataset(Stream([]))
    assert repr(unread) == "<DistributedDataset of 1 replica, not read yet>"


# -- what it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["map", "batch", "shuffle", "take", "repeat", "prefetch", "zip"])
def test_a_transformation_says_to_transform_before_distributing(two, name):
    dataset = two.distribute_dataset(Stream([]))
    with pytest.raises(
        AttributeError, match=rf"{name!r}: transform the pipeline before distributing it, dataset"
    ):
        getattr(dataset, name)
    assert not hasattr(dataset, name)


def test_other_names_are_missing_as_usual(two):
    dataset = two.distribute_dataset(Stream([]))
    with pytest.raises(AttributeError, match=r"'DistributedDataset' object has no attribute 'x'$"):
        _ = dataset.x


def test_it_cannot_be_subscripted(two):
    dataset = two.distribute_dataset(Stream([]))
    with pytest.raises(TypeError, match=r"cannot be subscripted \(got \[0\]\).*next\(iter\(datas"):
        dataset[0]


def test_it_is_not_iterated_in_the_function_of_a_replica(two, one):
    dataset = two.distribute_dataset(Stream(batches_of(range(6), 4)))
    iterator = iter(dataset)
    for fn in (lambda: next(iterator), lambda: [x for x in dataset]):
        with pytest.raises(
            RuntimeError, match=r"was iterated inside strategy\.run\(\).*args of run"
        ):
            two.run(fn)
    assert values_of(next(iterator)) == SIX[0]
    alone = iter(one.distribute_dataset(Stream(batches_of(range(6), 4))))
    assert one.run(lambda: next(alone)).tolist() == [0, 1, 2, 3]


def test_a_user_makes_it_through_a_strategy(two):
    assert isinstance(two.distribute_dataset(Stream([])), rx.DistributedDataset)
    assert isinstance(
        two.distribute_datasets_from_function(lambda _: Stream([])), rx.DistributedDataset
    )
    assert isinstance(iter(two.distribute_dataset(Stream([]))), rx.DistributedIterator)
