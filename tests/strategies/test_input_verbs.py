"""The methods of a strategy that concern input."""

import inspect

import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.core import notices
from replicax.core.enums import AutoShardPolicy
from tests.input.pipelines import Stream, batches_of, values_of

PER_REPLICA = rx.InputReplicationMode.PER_REPLICA


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def all_of(dataset):
    return [values_of(value) for value in dataset]


@pytest.mark.parametrize("name", ["distribute_dataset", "experimental_distribute_dataset"])
def test_a_dataset_is_distributed_by_either_name(two, name):
    distribute = getattr(two, name)
    assert all_of(distribute(np.arange(6), batch_size=4)) == [[[0, 1], [2, 3]], [[4], [5]]]
    off = distribute(np.arange(6), batch_size=4, auto_shard_policy=AutoShardPolicy.OFF)
    assert all_of(off) == [[[0, 1], [2, 3]], [[4, 5], []]]
    assert list(inspect.signature(distribute).parameters)[:2] == ["dataset", "options"]


@pytest.mark.parametrize(
    "name",
    ["distribute_datasets_from_function", "experimental_distribute_datasets_from_function"],
)
def test_functions_are_distributed_by_either_name(two, name):
    dataset = getattr(two, name)(lambda context: batches_of(range(4), 2))
    assert all_of(dataset) == [[[0, 1], [2, 3]]]
    assert list(inspect.signature(getattr(two, name)).parameters) == ["dataset_fn", "options"]


def test_one_dataset_cannot_be_a_pipeline_for_each_replica(two):
    options = rx.InputOptions(experimental_replication_mode=PER_REPLICA)
    with pytest.raises(
        NotImplementedError, match=r"PER_REPLICA needs a dataset for each.*Use distribute_datasets"
    ):
        two.distribute_dataset([np.arange(4)], options)


def test_options_must_be_options(two):
    for call in (
        lambda: two.distribute_dataset([np.arange(4)], {"fetch": True}),
        lambda: two.distribute_datasets_from_function(lambda _: [], {"fetch": True}),
    ):
        with pytest.raises(
            TypeError, match=r"options is \{'fetch': True\}; expected an InputOptio"
        ):
            call()


def test_an_unknown_policy_is_refused(two):
    with pytest.raises(ValueError, match=r"auto_shard_policy is 7; expected one of"):
        two.distribute_dataset([np.arange(4)], auto_shard_policy=7)


def test_input_is_not_distributed_inside_a_run(two):
    for call in (
        lambda: two.distribute_dataset([np.arange(4)]),
        lambda: two.distribute_datasets_from_function(lambda _: []),
    ):
        with pytest.raises(RuntimeError, match=r"was called inside strategy\.run\(\).*merge_call"):
            two.run(call)


# -- the older names ---------------------------------------------------------------------------


@pytest.fixture
def deprecations():
    names = (
        "Strategy.make_dataset_iterator",
        "Strategy.make_input_fn_iterator",
        "experimental_make_numpy_dataset",
        "extended.experimental_run_steps_on_iterator",
    )
    for name in names:
        notices.forget(("deprecated", name))
    yield
    for name in names:
        notices.forget(("deprecated", name))


def test_make_dataset_iterator_is_an_iterator_that_can_start_over(two, deprecations):
    with pytest.warns(DeprecationWarning, match=r"iter\(Strategy\.experimental_distribute_datas"):
        iterator = two.make_dataset_iterator(Stream(batches_of(range(6), 4)))
    iterator.initialize()
    assert values_of(iterator.get_next()) == [[0, 1], [2, 3]]
    iterator.initialize()
    assert len(list(iterator)) == 2


def test_make_input_fn_iterator_takes_the_replication_mode(two, deprecations):
    with pytest.warns(DeprecationWarning, match=r"distribute_datasets_from_function"):
        per_worker = two.make_input_fn_iterator(lambda context: batches_of(range(4), 2))
    assert all_of(per_worker) == [[[0, 1], [2, 3]]]
    per_replica = two.make_input_fn_iterator(
        lambda context: [np.full(1, context.input_pipeline_id)], PER_REPLICA
    )
    assert all_of(per_replica) == [[[0], [1]]]


NUMPY_INPUTS = {
    "an array": (np.arange(4.0), [0.0, 1.0, 2.0, 3.0]),
    "a list is stacked": ([np.arange(2), np.arange(2, 4)], [[0, 1], [2, 3]]),
    "a tuple is structure": ((np.arange(2), np.arange(2, 4)), [(0, 2), (1, 3)]),
    "a dict is structure": ({"a": np.arange(2)}, [{"a": 0}, {"a": 1}]),
    "lists in a dict": ({"a": [np.arange(2), np.arange(2, 4)]}, [{"a": [0, 1]}, {"a": [2, 3]}]),
}


@pytest.mark.parametrize("case", NUMPY_INPUTS)
def test_a_numpy_dataset_has_the_slices(two, deprecations, case):
    numpy_input, expected = NUMPY_INPUTS[case]

    def plain(element):
        if isinstance(element, tuple):
            return tuple(map(plain, element))
        if isinstance(element, dict):
            return {name: plain(leaf) for name, leaf in element.items()}
        return np.asarray(element).tolist()

    with pytest.warns(DeprecationWarning, match=r"Use data\.Dataset\.from_tensor_slices") as caught:
        datasets = [
            two.experimental_make_numpy_dataset(numpy_input),
            two.extended.experimental_make_numpy_dataset(numpy_input, session=object()),
            tf.distribute.experimental_make_numpy_dataset(numpy_input),
        ]
    assert len(caught) == 1
    for dataset in datasets:
        assert [plain(element) for element in dataset.as_numpy_iterator()] == expected


def test_a_numpy_dataset_is_batched_and_distributed(two, deprecations):
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        dataset = two.experimental_make_numpy_dataset(np.ones(10, np.float32))
    distributed = two.experimental_distribute_dataset(dataset.batch(2))
    assert all_of(distributed) == [[[1.0], [1.0]]] * 5


def test_the_documents_find_the_names(two):
    assert tf.distribute.InputContext is tf.compat.v1.distribute.InputContext is rx.InputContext
    assert tf.distribute.InputOptions is rx.InputOptions
    assert tf.distribute.DistributedDataset is rx.DistributedDataset
    assert tf.distribute.DistributedIterator is rx.DistributedIterator
    replication_mode = tf.compat.v1.distribute.InputReplicationMode
    assert replication_mode is tf.distribute.InputReplicationMode is rx.InputReplicationMode
    iterator = iter(two.distribute_dataset(Stream([])))
    with pytest.raises(tf.errors.OutOfRangeError, match="has ended"):
        iterator.get_next()


# -- many steps at once ------------------------------------------------------------------------


def test_many_steps_take_their_input_from_an_iterator(two, deprecations):
    with two.scope():
        total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
    dataset = two.distribute_dataset(Stream([np.full(4, i, np.float32) for i in range(1, 6)]))

    def step(context, batch):
        two.run(lambda x: total.assign_add(x.sum()), args=(batch,))

    iterator = iter(dataset)
    with pytest.warns(DeprecationWarning, match=r"Use Strategy\.run in a loop"):
        two.extended.experimental_run_steps_on_iterator(step, iterator, iterations=3)
    assert float(total) == 4.0 * 6
    assert iterator.get_state()["position"] == 3
    with pytest.raises(tf.errors.OutOfRangeError, match="ended after 2 of 3 steps"):
        two.extended.experimental_run_steps_on_iterator(step, iterator, iterations=3)
    assert float(total) == 4.0 * 15


def test_many_steps_need_an_iterator_not_a_dataset(two, deprecations):
    dataset = two.distribute_dataset(Stream([]))
    with (
        pytest.warns(DeprecationWarning, match=r"Use Strategy\.run in a loop"),
        pytest.raises(TypeError, match=r"needs an iterator; got <DistributedDataset.*Pass iter"),
    ):
        two.extended.experimental_run_steps_on_iterator(lambda *_: None, dataset)
