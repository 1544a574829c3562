"""The table of the tutorials on the migration page is true: each row is a test of the snippet.

The snippets are the documents' in our own words and with small data, on two replicas. A row that
says "unchanged" runs through `replicax.tf` as it would in TensorFlow; "changed" runs what to write
instead; "not possible" shows what the error says.
"""

import json
import pathlib
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from tests.backend.fresh_process import run_fresh
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "migrating_from_tf_distribute.md"
DEVICES = ["CPU:0", "CPU:1"]
XS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
LABELS = (XS[:, 0] > 0).astype(np.int32)

ROWS = {}


def row(tutorial, snippet, answer):
    """Registers the test of one row; `answer` is how the last column begins."""

    def register(test):
        assert (tutorial, snippet) not in ROWS
        ROWS[tutorial, snippet] = answer, test
        return test

    return register


def written_rows():
    """The rows of the page: tutorial and snippet, with the last column."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## The tutorials\n")
    section = section.partition("\n## ")[0]
    rows, tutorial = {}, ""
    for line in section.splitlines():
        if line.startswith("### "):
            tutorial = line.removeprefix("### ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and set(cells[1]) != {"-"}:
            rows[tutorial, cells[0]] = cells[1]
    return {key: text for key, text in rows.items() if key[1] != "snippet"}


def mirrored():
    return tf.distribute.MirroredStrategy(DEVICES)


def dataset(batch_size=4):
    return tf.data.Dataset.from_tensor_slices((XS, LABELS)).batch(batch_size)


def new_model():
    dense = tf.keras.layers.Dense(2, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input((3,)), dense])


def new_loss():
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


class Training:
    """The custom training tutorial's objects and functions."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.loss_object = new_loss()
        with strategy.scope():
            self.model = new_model()
            self.optimizer = tf.keras.optimizers.Adam(learning_rate=0.1)
            self.train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
            self.test_loss = tf.keras.metrics.Mean()
            self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)

    def train_step(self, inputs):
        x, labels = inputs

        def loss_fn():
            losses = self.loss_object(labels, self.model(x, training=True))
            return tf.nn.compute_average_loss(losses, global_batch_size=4)

        weights = self.model.trainable_variables
        loss, gradients = rx.value_and_grad(loss_fn, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.train_accuracy.update_state(labels, self.model(x))
        return loss

    @tf.function
    def distributed_train_step(self, inputs):
        losses = self.strategy.run(self.train_step, args=(inputs,))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


# -- Custom training -----------------------------------------------------------------------------

CUSTOM = "Custom training"


@row(CUSTOM, "`MirroredStrategy()`, `num_replicas_in_sync`, the global batch size", "unchanged")
def check_strategy(tmp_path):
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    assert 64 * strategy.num_replicas_in_sync == 128


@row(CUSTOM, "`from_tensor_slices(...).shuffle(...).batch(...)`, distributed", "unchanged")
def check_dataset(tmp_path):
    pipeline = tf.data.Dataset.from_tensor_slices((XS, LABELS)).shuffle(12).batch(4)
    distributed = mirrored().experimental_distribute_dataset(pipeline)
    assert sum(1 for _ in distributed) == 3


@row(CUSTOM, "the Keras model", "unchanged")
def check_model(tmp_path):
    with mirrored().scope():
        model = new_model()
    assert model(XS).shape == (12, 2)


@row(CUSTOM, "the loss object and `compute_average_loss`", "unchanged")
def check_loss(tmp_path):
    with mirrored().scope():
        losses = new_loss()(LABELS, new_model()(XS))
    loss = tf.nn.compute_average_loss(losses, global_batch_size=12)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-5)


@row(CUSTOM, "`scale_regularization_loss`", "unchanged")
def check_regularization(tmp_path):
    strategy = mirrored()
    penalties = strategy.run(lambda: tf.nn.scale_regularization_loss(tf.constant(3.0)))
    assert float(strategy.reduce("SUM", penalties, axis=None)) == 3.0


@row(
    CUSTOM,
    "metrics in the scope, `update_state` in the step, `result`, `reset_states`",
    "changed",
)
def check_metrics(tmp_path):
    strategy = mirrored()
    with strategy.scope():
        loss = tf.keras.metrics.Mean(name="test_loss")
    strategy.run(tf.function(loss.update_state), args=(strategy.distribute_batch(XS[:, 0]),))
    np.testing.assert_allclose(float(loss.result()), XS[:, 0].mean(), rtol=1e-4)
    loss.reset_state()
    assert float(loss.result()) == 0.0


@row(CUSTOM, "`train_step` with a gradient tape", "changed")
def check_train_step(tmp_path):
    training = Training(mirrored())
    training.strategy.run(tf.function(training.train_step), args=(next(batches(training)),))
    assert int(training.optimizer.iterations) == 1
    with pytest.raises(NotImplementedError, match="value_and_grad"):
        tf.GradientTape()


@row(CUSTOM, "`distributed_train_step`: `run`, then `reduce`, in a `tf.function`", "unchanged")
def check_distributed_train_step(tmp_path):
    training = Training(mirrored())
    losses = [float(training.distributed_train_step(batch)) for batch in batches(training, 5)]
    assert losses[-1] < losses[0]


@row(CUSTOM, "`test_step`", "unchanged")
def check_test_step(tmp_path):
    training = Training(mirrored())

    @tf.function
    def test_step(inputs):
        x, labels = inputs
        training.test_loss.update_state(training.loss_object(labels, training.model(x)))

    for batch in batches(training):
        training.strategy.run(test_step, args=(batch,))
    np.testing.assert_allclose(training.test_loss.result(), np.log(2), rtol=1e-5)


@row(CUSTOM, "`tf.train.Checkpoint`, restored without a strategy", "changed")
def check_checkpoint(tmp_path):
    training = Training(mirrored())
    for batch in batches(training):
        training.distributed_train_step(batch)
    training.checkpoint.save(tmp_path / "ckpt")
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = new_model()
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.restore(tf.train.latest_checkpoint(tmp_path)).expect_partial()
    for own, trained in zip(model.weights, training.model.weights, strict=True):
        np.testing.assert_array_equal(own.numpy(), trained.numpy())


@row(CUSTOM, "a loop over `iter(dataset)` with `next`", "unchanged")
def check_iterator(tmp_path):
    training = Training(mirrored())
    iterator = iter(training.strategy.experimental_distribute_dataset(dataset()))
    for _ in range(3):
        training.distributed_train_step(next(iterator))
    assert int(training.optimizer.iterations) == 3


@row(CUSTOM, "a loop over the dataset inside a `tf.function`", "unchanged")
def check_loop_in_function(tmp_path):
    training = Training(mirrored())
    distributed = training.strategy.experimental_distribute_dataset(dataset())

    @tf.function
    def train_epoch(distributed):
        total, count = 0.0, 0
        for batch in distributed:
            total += training.distributed_train_step(batch)
            count += 1
        return total / count

    assert 0 < float(train_epoch(distributed)) < 1
    assert int(training.optimizer.iterations) == 3


@row(CUSTOM, "`print` with `loss.numpy()`, `template.format(...)`", "changed")
def check_printing(tmp_path):
    training = Training(mirrored())
    loss = training.distributed_train_step(next(batches(training)))
    with pytest.raises(AttributeError, match="numpy"):
        loss.numpy()
    assert f"{float(loss):.3f} {np.asarray(training.train_accuracy.result())}".startswith("0.")


def batches(training, epochs=1):
    distributed = training.strategy.experimental_distribute_dataset(dataset())
    return (batch for _ in range(epochs) for batch in distributed)


# -- Custom training with several workers --------------------------------------------------------

WORKERS = "Custom training loop with several workers"


@row(WORKERS, "`os.environ['TF_CONFIG']`, the task's type and index", "unchanged")
def check_tf_config(tmp_path):
    description = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", json.dumps(description))
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == ("worker", 1)


@row(WORKERS, "`MultiWorkerMirroredStrategy()`", "unchanged")
def check_multi_worker(tmp_path):
    assert tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync == 8


@row(WORKERS, "`dataset_fn(input_context)` with `shard`", "unchanged")
def check_dataset_fn(tmp_path):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def dataset_fn(context):
        size = context.get_per_replica_batch_size(8)
        return (
            tf.data.Dataset.range(16)
            .shard(context.num_input_pipelines, context.input_pipeline_id)
            .batch(size)
        )

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    assert sum(1 for _ in distributed) == 2


@row(
    WORKERS, "`train_step(iterator)`: `run` of `next(iterator)` inside a `tf.function`", "unchanged"
)
def check_next_in_function(tmp_path):
    training = Training(mirrored())
    iterator = iter(training.strategy.experimental_distribute_dataset(dataset()))

    @tf.function
    def train_step(iterator):
        losses = training.strategy.run(training.train_step, args=(next(iterator),))
        return training.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    np.testing.assert_allclose(float(train_step(iterator)), np.log(2), rtol=1e-5)


@row(WORKERS, "`_is_chief` and a temporary folder for every other worker", "changed")
def check_chief(tmp_path):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert strategy.is_chief
    with strategy.scope():
        checkpoint = tf.train.Checkpoint(step=tf.Variable(3))
    assert pathlib.Path(checkpoint.save(tmp_path / "ckpt")).exists()


@row(WORKERS, "`epoch` and `step_in_epoch` as variables in the checkpoint", "unchanged")
def check_counters(tmp_path):
    with mirrored().scope():
        epoch = tf.Variable(tf.constant(0), name="epoch")
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(epoch=epoch), directory=tmp_path, max_to_keep=1
        )
    epoch.assign_add(1)
    manager.save()
    epoch.assign(7)
    manager.restore_or_initialize()
    assert int(epoch) == 1


# -- Distributed input ---------------------------------------------------------------------------

INPUT = "Distributed input"


@row(INPUT, "`experimental_distribute_dataset`, `for x in dist_dataset`", "unchanged")
def check_distribute_dataset(tmp_path):
    strategy = mirrored()
    distributed = strategy.experimental_distribute_dataset(dataset(5))
    sizes = [[len(x) for x in strategy.experimental_local_results(x)] for x, _ in distributed]
    assert sizes == [[3, 2], [3, 2], [1, 1]]


@row(INPUT, "`AutoShardPolicy` in `tf.data.Options`", "unchanged")
def check_policy(tmp_path):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    distributed = mirrored().experimental_distribute_dataset(dataset().with_options(options))
    assert len(distributed) == 3


@row(INPUT, "`distribute_datasets_from_function(dataset_fn, options)`", "unchanged")
def check_from_function(tmp_path):
    strategy = mirrored()
    options = tf.distribute.InputOptions(experimental_fetch_to_device=True)
    distributed = strategy.distribute_datasets_from_function(lambda context: dataset(2), options)
    assert sum(1 for _ in distributed) == 3


@row(INPUT, "`get_next_as_optional`, `has_value`, `get_value`", "unchanged")
def check_optional(tmp_path):
    strategy = mirrored()
    iterator = iter(strategy.experimental_distribute_dataset(dataset(12)))
    assert iterator.get_next_as_optional().has_value()
    assert not iterator.get_next_as_optional().has_value()


@row(INPUT, "`element_spec` as `input_signature`", "unchanged")
def check_element_spec(tmp_path):
    strategy = mirrored()
    distributed = strategy.experimental_distribute_dataset(dataset())

    @tf.function(input_signature=[distributed.element_spec])
    def step(inputs):
        return strategy.run(lambda x, _: tf.reduce_sum(x), args=inputs)

    total = sum(float(strategy.reduce("SUM", step(batch), axis=None)) for batch in distributed)
    np.testing.assert_allclose(total, XS.sum(), rtol=1e-3, atol=1e-5)


@row(INPUT, "`Dataset.from_generator`", "unchanged")
def check_generator(tmp_path):
    spec = tf.TensorSpec((3,), tf.float32)
    pipeline = tf.data.Dataset.from_generator(lambda: iter(XS), output_signature=spec).batch(4)
    assert sum(1 for _ in mirrored().experimental_distribute_dataset(pipeline)) == 3


@row(INPUT, "`experimental_distribute_values_from_function`", "unchanged")
def check_values(tmp_path):
    strategy = mirrored()
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    assert [int(v) for v in strategy.experimental_local_results(values)] == [0, 1]


@row(INPUT, "`tf.data.experimental.service`", "not possible")
def check_service(tmp_path):
    with pytest.raises(AttributeError, match=r"It is not in replicax\.data\.Dataset"):
        tf.data.experimental.service  # noqa: B018


# -- Distributed training ------------------------------------------------------------------------

GUIDE = "Distributed training (the guide)"


@row(GUIDE, "`MirroredStrategy(devices, cross_device_ops=...)`", "unchanged")
def check_cross_device_ops(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rx.ReplicaxWarning)  # XLA chooses the algorithm
        ops = tf.distribute.HierarchicalCopyAllReduce()
        strategy = tf.distribute.MirroredStrategy(DEVICES, cross_device_ops=ops)
        values = strategy.run(lambda: tf.constant(1.0))
        assert float(strategy.reduce("SUM", values, axis=None)) == 2.0


@row(GUIDE, "`MultiWorkerMirroredStrategy(communication_options=...)`", "unchanged")
def check_communication_options(tmp_path):
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.AUTO
    )
    assert tf.distribute.MultiWorkerMirroredStrategy(communication_options=options).is_chief


@row(GUIDE, "`TPUStrategy`, with a resolver and `initialize_tpu_system`", "unchanged")
def check_tpu(tmp_path):
    printed = run_fresh("""
        import replicax as rx
        import replicax.tf as tf

        rx.set_virtual_devices(2, kind="TPU")
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        print(tf.distribute.TPUStrategy(resolver).num_replicas_in_sync)
    """)
    assert printed == "2\n"


@row(GUIDE, "`CentralStorageStrategy`", "unchanged")
def check_central_storage(tmp_path):
    strategy = tf.distribute.experimental.CentralStorageStrategy(DEVICES, "CPU:0")
    with strategy.scope():
        v = tf.Variable(1.0)
    assert v.devices() == {jax.devices()[0]}


@row(GUIDE, "`ParameterServerStrategy`, `ClusterCoordinator`", "unchanged")
def check_parameter_servers(tmp_path):
    cluster = tf.train.ClusterSpec({"ps": ["localhost:1"], "worker": ["localhost:2"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster)
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        v = tf.Variable(1.0)
    value = coordinator.schedule(tf.function(lambda x: v.assign_add(x).read_value()), args=(2.0,))
    coordinator.join()
    assert (value.fetch(), v.numpy()) == (3.0, 3.0)


@row(GUIDE, "the default strategy, `OneDeviceStrategy`", "unchanged")
def check_one_device(tmp_path):
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
    strategy = tf.distribute.OneDeviceStrategy("/cpu:1")
    with strategy.scope():
        assert tf.Variable(1.0).devices() == {jax.devices()[1]}


@row(GUIDE, "`model.compile`, `fit`, `evaluate` in the scope", "unchanged")
def check_fit(tmp_path):
    with mirrored().scope():
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer="sgd")
    history = model.fit(XS, LABELS, batch_size=4, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    assert model.evaluate(XS, LABELS, batch_size=4, verbose=0) < history["loss"][0]


@row(
    GUIDE,
    "the custom loop: `from_tensors(...).repeat(...).batch(...)`, `next(iterator)`",
    "changed",
)
def check_custom_loop(tmp_path):
    strategy = mirrored()
    with strategy.scope():
        dense = tf.keras.layers.Dense(1, kernel_initializer="zeros")
        model = tf.keras.Sequential([tf.keras.Input((1,)), dense])
        optimizer = tf.keras.optimizers.SGD(learning_rate=0.1)
    pipeline = tf.data.Dataset.from_tensors((np.float32([1.0]), np.float32([1.0])))
    distributed = strategy.experimental_distribute_dataset(pipeline.repeat(1000).batch(4))

    def train_step(x, y):
        def loss_fn():
            losses = jnp.mean((model(x) - y) ** 2, axis=-1)
            return tf.nn.compute_average_loss(losses, global_batch_size=4)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(inputs):
        losses = strategy.run(train_step, args=inputs)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    iterator = iter(distributed)
    losses = [float(distributed_train_step(next(iterator))) for _ in range(10)]
    assert losses[0] == 1.0
    assert losses[-1] < 0.02


# -- the page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ROWS, ids=" - ".join)
def test_a_row_is_true(key, tmp_path):
    ROWS[key][1](tmp_path)


def test_the_page_has_the_same_rows_and_answers():
    written = {
        key: re.match(r"unchanged|changed|not possible", text)[0]
        for key, text in written_rows().items()
    }
    assert written == {key: answer for key, (answer, _) in ROWS.items()}
