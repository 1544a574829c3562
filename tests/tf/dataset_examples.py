"""The dataset examples of the documents on Strategy and its extended; see `strategy_examples`."""

import contextlib
import itertools
import os
import tempfile
import warnings

import numpy as np

import replicax.tf as tf
from replicax.input.pipeline.readers import write_records
from tests.tf.comparing import assert_result, assert_tensor, parts_of

GLOBAL_BATCH_SIZE = 8
NUM_RECORDS = 22  # 2 full batches and one of 6
RECORDS = np.arange(3.0 * NUM_RECORDS, dtype=np.float32).reshape(NUM_RECORDS, 3)
EPOCHS = 2


def _batches(rows, size):
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@contextlib.contextmanager
def _record_files():
    """Four files, with the rows of `RECORDS` in their order."""
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, f"{i}.tfr") for i in range(1, 5)]
        for name, rows in zip(names, np.array_split(RECORDS, 4), strict=True):
            write_records(name, [row.tobytes() for row in rows])
        yield names


def _parse(record):
    return np.frombuffer(record, np.float32)


def _record_dataset(files):
    return tf.data.TFRecordDataset(files).map(_parse).batch(GLOBAL_BATCH_SIZE)


@contextlib.contextmanager
def _deprecated():
    """The documents say that the call is deprecated, and the warning comes once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def a_simple_custom_training_loop(devices=None):
    my_strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices(RECORDS).batch(GLOBAL_BATCH_SIZE)
    with my_strategy.scope():

        @tf.function
        def distribute_train_epoch(dataset):
            def replica_fn(input):
                # process input and return result
                result = tf.reduce_sum(input)
                return result

            total_result = 0
            for x in dataset:
                per_replica_result = my_strategy.run(replica_fn, args=(x,))
                total_result += my_strategy.reduce(
                    tf.distribute.ReduceOp.SUM, per_replica_result, axis=None
                )
            return total_result

        dist_dataset = my_strategy.experimental_distribute_dataset(dataset)
        for _ in range(EPOCHS):
            train_result = distribute_train_epoch(dist_dataset)
            assert_tensor(train_result, RECORDS.sum(), tf.float32)


def metrics_accumulate_over_an_epoch(devices=None):
    """The text after the loop: metrics instead of ``reduce``, one figure for the whole pass."""
    my_strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices(RECORDS).batch(GLOBAL_BATCH_SIZE)
    with my_strategy.scope():
        loss = tf.keras.metrics.Mean()
        dist_dataset = my_strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def replica_fn(input):
        loss.update_state(input)

    for _ in range(EPOCHS):
        loss.reset_state()
        for x in dist_dataset:
            my_strategy.run(replica_fn, args=(x,))
        np.testing.assert_allclose(loss.result(), RECORDS.mean())


def distribute_a_dataset_of_files(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    with _record_files() as files:
        # Create a dataset
        dataset = _record_dataset(files)

        # Distribute that dataset
        dist_dataset = strategy.experimental_distribute_dataset(dataset)
        assert isinstance(dist_dataset, tf.distribute.DistributedDataset)

        def replica_fn(input):
            return input * 2.0

        expected = _batches(RECORDS, GLOBAL_BATCH_SIZE)
        # Iterate over the `tf.distribute.DistributedDataset`
        for x in dist_dataset:
            # process dataset elements
            result = strategy.run(replica_fn, args=(x,))
            chunks = parts_of(strategy, expected.pop(0))
            assert_result(strategy, x, chunks, tf.float32)
            assert_result(strategy, result, [2.0 * chunk for chunk in chunks], tf.float32)
        assert not expected


def element_spec_as_an_input_signature(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    with _record_files() as files:
        # Create a dataset
        dataset = _record_dataset(files)

        # Distribute that dataset
        dist_dataset = strategy.experimental_distribute_dataset(dataset)
        with strategy.scope():
            total = tf.keras.metrics.Sum()

        @tf.function(input_signature=[dist_dataset.element_spec])
        def train_step(inputs):
            # train model with inputs
            total.update_state(inputs)

        # Iterate over the `tf.distribute.DistributedDataset`
        for x in dist_dataset:
            # process dataset elements
            strategy.run(train_step, args=(x,))
    assert_tensor(total.result(), RECORDS.sum(), tf.float32)


def datasets_from_a_function(devices=None):
    global_batch_size = 8

    def dataset_fn(input_context):
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        d = tf.data.Dataset.from_tensors([[3.0]]).repeat().batch(batch_size)
        return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    strategy = tf.distribute.MirroredStrategy(devices)
    ds = strategy.experimental_distribute_datasets_from_function(dataset_fn)
    n = strategy.num_replicas_in_sync

    def train(ds):
        @tf.function(input_signature=[ds.element_spec])
        def step_fn(inputs):
            # train the model with inputs
            return inputs

        for step, batch in enumerate(ds, start=1):
            replica_results = strategy.run(step_fn, args=(batch,))
            expected = np.full((global_batch_size // n, 1, 1), 3.0, np.float32)
            assert_result(strategy, replica_results, [expected] * n, tf.float32)
            if step == 3:  # the dataset never ends
                return

    train(ds)


def datasets_from_a_function_give_one_batch_to_each_replica(devices=None):
    """The text: every replica takes one batch of its worker's pipeline in each step."""
    global_batch_size = 8
    contexts = []

    def dataset_fn(input_context):
        contexts.append(input_context)
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        d = tf.data.Dataset.from_tensor_slices(RECORDS).batch(batch_size)
        return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    strategy = tf.distribute.MirroredStrategy(devices)
    ds = strategy.experimental_distribute_datasets_from_function(dataset_fn)
    n = strategy.num_replicas_in_sync
    (context,) = contexts  # once for each worker
    assert isinstance(context, tf.distribute.InputContext)
    assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert context.num_replicas_in_sync == n
    batches = iter(_batches(RECORDS, global_batch_size // n))
    for batch in ds:
        taken = list(itertools.islice(batches, n))
        taken += [RECORDS[:0]] * (n - len(taken))  # nothing is dropped at the end
        assert_result(strategy, batch, taken, tf.float32)
    assert not list(batches)


def make_a_numpy_dataset(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    numpy_input = np.linspace(0.0, 1.0, 10, dtype=np.float32)
    with _deprecated():
        dataset = strategy.experimental_make_numpy_dataset(numpy_input)
    assert dataset.element_spec == tf.TensorSpec((), tf.float32)
    dataset = dataset.batch(2)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    assert len(dist_dataset) == 5
    for x, batch in zip(dist_dataset, _batches(numpy_input, 2), strict=True):
        assert_result(strategy, x, parts_of(strategy, batch), tf.float32)


def make_numpy_datasets_of_nests(devices=None):
    """The text: lists of arrays are stacked; a session means nothing without graphs."""
    strategy = tf.distribute.MirroredStrategy(devices)
    rows = [np.full(2, i, np.float32) for i in range(16)]
    with _deprecated(), strategy.scope():
        made = [
            strategy.extended.experimental_make_numpy_dataset(rows, session=None),
            tf.distribute.experimental_make_numpy_dataset(rows),
        ]
        pairs = strategy.experimental_make_numpy_dataset((np.stack(rows), {"label": np.arange(16)}))
    for dataset in made:
        x = next(iter(strategy.experimental_distribute_dataset(dataset.batch(16))))
        assert_result(strategy, x, parts_of(strategy, np.stack(rows)), tf.float32)
    x, y = next(iter(strategy.experimental_distribute_dataset(pairs.batch(16))))
    assert_result(strategy, x, parts_of(strategy, np.stack(rows)), tf.float32)
    assert_result(strategy, y["label"], parts_of(strategy, np.arange(16)), tf.int32)


def get_next_until_the_end(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices(RECORDS).batch(GLOBAL_BATCH_SIZE)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    assert isinstance(iterator, tf.distribute.DistributedIterator)
    for batch in _batches(RECORDS, GLOBAL_BATCH_SIZE):
        assert_result(strategy, iterator.get_next(), parts_of(strategy, batch), tf.float32)
    try:
        iterator.get_next()
    except tf.errors.OutOfRangeError:
        pass
    else:
        raise AssertionError("the iterator has not ended")


def a_function_takes_the_next_elements_of_an_iterator(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices(RECORDS).batch(GLOBAL_BATCH_SIZE)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @tf.function
    def train_steps(iterator):
        results = strategy.run(tf.reduce_sum, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, results, axis=None)

    for batch in _batches(RECORDS, GLOBAL_BATCH_SIZE):
        assert_tensor(train_steps(iterator), batch.sum(), tf.float32)


def run_steps_on_an_iterator(devices=None):
    """The text: `inputs` is what ``iterator.get_next()`` gives, `context` takes outputs."""
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices(RECORDS).batch(GLOBAL_BATCH_SIZE)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    def fn(context, inputs):
        results = strategy.extended.call_for_each_replica(tf.reduce_sum, args=(inputs,))
        context.set_last_step_output("sum", results, tf.distribute.ReduceOp.SUM)

    with _deprecated():
        context = strategy.extended.experimental_run_steps_on_iterator(fn, iterator, iterations=2)
    second = _batches(RECORDS, GLOBAL_BATCH_SIZE)[1]
    assert_tensor(context.last_step_outputs["sum"], second.sum(), tf.float32)


EXAMPLES = (
    a_simple_custom_training_loop,
    metrics_accumulate_over_an_epoch,
    distribute_a_dataset_of_files,
    element_spec_as_an_input_signature,
    datasets_from_a_function,
    datasets_from_a_function_give_one_batch_to_each_replica,
    make_a_numpy_dataset,
    make_numpy_datasets_of_nests,
    get_next_until_the_end,
    a_function_takes_the_next_elements_of_an_iterator,
    run_steps_on_an_iterator,
)
