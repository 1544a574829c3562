"""Pipelines of per-replica batches: who takes what, and what happens at the end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.spec import PerReplicaSpec, TensorSpec
from replicax.input.context import InputContext
from replicax.input.from_function import PerReplicaBatches, input_contexts, source_from
from replicax.input.source import INFINITE, UNKNOWN
from tests.input.pipelines import Stream, batches_of, int_spec, parts_of, topologies, values_of

PER_REPLICA = rx.InputReplicationMode.PER_REPLICA


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def reading(sources, topology, *, per_replica=False):
    return PerReplicaBatches(sources, topology, per_replica=per_replica)


def steps(sources, topology, *, per_replica=False, start=0):
    opened = reading(sources, topology, per_replica=per_replica).open(epoch=0, start=start)
    return [parts_of(step) for step in opened]


# -- InputContext ------------------------------------------------------------------------------


def test_a_context_divides_the_global_batch():
    context = InputContext(2, 1, 4)
    assert (context.num_input_pipelines, context.input_pipeline_id) == (2, 1)
    assert context.num_replicas_in_sync == 4
    assert context.get_per_replica_batch_size(32) == 8
    assert "input_pipeline_id=1" in repr(context)


def test_a_batch_that_the_replicas_do_not_divide_shows_both_numbers():
    with pytest.raises(ValueError, match=r"global_batch_size is 7, which 2 replicas do not divide"):
        InputContext(num_replicas_in_sync=2).get_per_replica_batch_size(7)


def test_a_pipeline_id_outside_the_pipelines_is_refused():
    with pytest.raises(ValueError, match="input_pipeline_id is 2; expected 0 to 1"):
        InputContext(2, 2)


def numbers(context):
    return context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync


def test_there_is_a_pipeline_for_each_worker_or_for_each_replica():
    for worker, topology in enumerate(topologies(2, 3)):
        (context,) = input_contexts(topology, per_replica=False)
        assert numbers(context) == (2, worker, 6)
        contexts = input_contexts(topology, per_replica=True)
        assert [numbers(c) for c in contexts] == [(6, 3 * worker + i, 6) for i in range(3)]


# -- steps -------------------------------------------------------------------------------------


def test_each_replica_takes_one_batch_a_step():
    source = Stream(batches_of(range(8), 2))
    assert steps([source], topologies(1, 2)[0]) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_running_out_in_the_middle_of_a_step_gives_empty_batches():
    source = Stream(batches_of(range(7), 2))
    assert steps([source], topologies(1, 3)[0]) == [[[0, 1], [2, 3], [4, 5]], [[6], [], []]]


def test_the_empty_batches_have_the_other_dims():
    source = Stream([np.ones((2, 3), np.float32)])
    (step,) = reading([source], topologies(1, 2)[0]).open(epoch=0, start=0)
    assert step.shares[0].shapes == ((2, 3), (0, 3))


def test_with_a_pipeline_each_the_shorter_one_goes_on_empty():
    sources = [Stream(batches_of(range(4), 2)), Stream(batches_of(range(10, 12), 2))]
    assert steps(sources, topologies(1, 2)[0], per_replica=True) == [
        [[0, 1], [10, 11]],
        [[2, 3], []],
    ]


def test_a_pass_may_start_at_any_step():
    make = lambda: [Stream(batches_of(range(10), 1))]  # noqa: E731
    topology = topologies(1, 3)[0]
    for start in range(5):
        assert steps(make(), topology, start=start) == steps(make(), topology)[start:]


def test_elements_without_a_batch_dim_drop_the_incomplete_step_and_say_how_many():
    source = Stream(np.arange(5))
    with pytest.warns(rx.ReplicaxWarning, match=r"dropped, and 2 elements with it.*2 of 3 replica"):
        assert steps([source], topologies(1, 3)[0]) == [[0, 1, 2]]


def test_the_warning_comes_once_for_a_dataset(two):
    dataset = two.distribute_datasets_from_function(lambda _: Stream(np.arange(3)))
    with pytest.warns(rx.ReplicaxWarning, match="and 1 element with it") as caught:
        passes = [[values_of(value) for value in dataset] for _ in range(2)]
    assert passes == [[[0, 1]], [[0, 1]]]
    assert len(caught) == 1


def test_a_complete_pass_of_elements_warns_of_nothing(two):
    dataset = two.distribute_datasets_from_function(lambda _: Stream(np.arange(4)))
    assert [values_of(value) for value in dataset] == [[0, 1], [2, 3]]


BAD_STEPS = {
    "structure": ([{"a": np.ones(2)}, {"b": np.ones(2)}], "different structure in one step"),
    "rank": ([np.ones(2), np.ones((2, 1))], r"different rank in one step.*\(2,\), \(2, 1\)"),
    "dtype": ([np.ones(2), np.ones(2, int)], r"different dtypes in one step: \['float32', 'int32'"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_replicas_must_get_elements_of_one_kind(case):
    elements, text = BAD_STEPS[case]
    with pytest.raises(ValueError, match=text):
        steps([Stream(elements)], topologies(1, 2)[0])


def test_replicas_may_get_batches_of_different_widths(two):
    dataset = two.distribute_datasets_from_function(
        lambda _: Stream([np.ones((2, 3), np.float32), np.ones((1, 4), np.float32)])
    )
    (value,) = dataset
    assert value.shapes == ((2, 3), (1, 4))
    assert [np.asarray(part).sum() for part in value.values] == [6.0, 4.0]


# -- what is known without reading -------------------------------------------------------------

COUNTS = {
    "whole steps": ([6], False, 3),
    "an incomplete step": ([5], False, 3),
    "endless": ([INFINITE], False, INFINITE),
    "unknown": ([UNKNOWN], False, UNKNOWN),
    "per replica": ([3, 3], True, 3),
    "per replica, unequal": ([3, 5], True, 5),
    "per replica, one endless": ([3, INFINITE], True, INFINITE),
}


@pytest.mark.parametrize("case", COUNTS)
def test_the_steps_are_counted(case):
    counts, per_replica, expected = COUNTS[case]
    sources = [Stream([], cardinality=count) for count in counts]
    assert reading(sources, topologies(1, 2)[0], per_replica=per_replica).cardinality == expected


def test_dropped_steps_are_not_counted():
    source = Stream([], cardinality=5, spec=TensorSpec((), np.int32))
    assert reading([source], topologies(1, 2)[0]).cardinality == 2


def test_what_other_workers_have_is_not_known():
    assert reading([Stream([], cardinality=4)], topologies(2, 2)[0]).cardinality == UNKNOWN


SPECS = {
    "whole steps": (6, 2),
    "an incomplete step": (5, None),
    "endless": (INFINITE, 2),
    "unknown": (UNKNOWN, None),
}


@pytest.mark.parametrize("case", SPECS)
def test_the_spec_has_a_fixed_size_only_if_no_batch_is_ever_empty(case):
    count, size = SPECS[case]
    own = reading([Stream([], cardinality=count, spec=int_spec(2))], topologies(1, 2)[0])
    assert own.element_spec == PerReplicaSpec(*[TensorSpec((size,), np.int32)] * 2)


def test_the_spec_of_one_replica_is_bare():
    own = reading([Stream([], cardinality=UNKNOWN, spec=int_spec(2))], topologies(1, 1)[0])
    assert own.element_spec == TensorSpec((2,), np.int32)


def test_a_state_is_for_as_many_pipelines_and_replicas():
    state = reading([Stream([])], topologies(1, 2)[0]).state()
    reading([Stream([])], topologies(1, 2)[0]).adopt(state)
    with pytest.raises(ValueError, match=r"saved with num_replicas=2, and here it is 3"):
        reading([Stream([])], topologies(1, 3)[0]).adopt(state)
    with pytest.raises(ValueError, match=r"saved with num_input_pipelines=1, and here it is 2"):
        reading([Stream([])], topologies(2, 1)[0]).adopt(state)


# -- dataset_fn --------------------------------------------------------------------------------


def test_dataset_fn_is_called_once_however_often_the_dataset_is_read(two):
    calls = []

    def dataset_fn(context):
        calls.append(numbers(context))
        return [np.arange(2), np.arange(2, 4)]

    dataset = two.distribute_datasets_from_function(dataset_fn)
    assert [[values_of(value) for value in dataset] for _ in range(3)] == [[[[0, 1], [2, 3]]]] * 3
    assert calls == [(1, 0, 2)]


def test_per_replica_dataset_fn_is_called_for_each_replica(two):
    options = rx.InputOptions(experimental_replication_mode=PER_REPLICA)
    calls = []

    def dataset_fn(context):
        calls.append(numbers(context))
        return batches_of(range(4), 2)

    dataset = two.distribute_datasets_from_function(dataset_fn, options)
    assert [values_of(value) for value in dataset] == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]]
    assert calls == [(2, 0, 2), (2, 1, 2)]
    # and the next one is per worker again
    plain = two.distribute_datasets_from_function(lambda _: batches_of(range(4), 2))
    assert [values_of(value) for value in plain] == [[[0, 1], [2, 3]]]


def test_dataset_fn_may_run_on_the_device_of_its_replica(two):
    options = rx.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=PER_REPLICA,
        experimental_place_dataset_on_device=True,
    )

    class Made(Stream):
        def open(self, *, epoch, start):
            for _ in range(2):
                yield jnp.ones(2) * 3

    made_on = []

    def dataset_fn(context):
        made_on.append(jnp.zeros(()).devices())
        return Made([])

    devices = [{device} for device in jax.devices()[:2]]
    for value in two.distribute_datasets_from_function(dataset_fn, options):
        assert [part.devices() for part in value.values] == devices
    assert made_on == devices
    without = rx.InputOptions(
        experimental_fetch_to_device=False, experimental_replication_mode=PER_REPLICA
    )
    for value in two.distribute_datasets_from_function(dataset_fn, without):
        assert [part.devices() for part in value.values] == [devices[0]] * 2


BAD_FUNCTIONS = {
    "no function": ([1, 2], r"dataset_fn is \[1, 2\]; expected a function that takes an InputCon"),
    "None": (lambda context: None, r"returned None for InputContext\(.*Is the return missing"),
    "no dataset": (lambda context: 3, r"3"),
}


@pytest.mark.parametrize("case", BAD_FUNCTIONS)
def test_a_function_that_makes_no_dataset_is_refused(two, case):
    dataset_fn, text = BAD_FUNCTIONS[case]
    with pytest.raises((TypeError, ValueError), match=text):
        two.distribute_datasets_from_function(dataset_fn)


def test_a_distributed_dataset_is_not_distributed_again(two):
    dataset = two.distribute_dataset([np.arange(4)])
    with pytest.raises(TypeError, match="is a DistributedDataset, which is distributed already"):
        two.distribute_datasets_from_function(lambda _: dataset)
    with pytest.raises(TypeError, match="is a DistributedDataset, which is distributed already"):
        two.distribute_dataset(dataset)
    with pytest.raises(TypeError, match="is a DistributedIterator, which is distributed already"):
        two.distribute_dataset(iter(dataset))


def test_the_source_of_the_adapters_is_used():
    context = InputContext()
    assert source_from(lambda c: c, context, lambda dataset: dataset) is context
