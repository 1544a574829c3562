"""`tf.estimator` on one device and many: the loops, what they leave in the folder, and errors."""

import ast
import importlib
import logging
import pathlib
import re
import time

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.estimator as estimator_package
import replicax.tf as tf
from tests.estimator.models import (
    BATCH,
    NUM_EXAMPLES,
    bits,
    estimator,
    eval_input,
    examples,
    trained_and_evaluated,
)
from website.names import documented_names

EXACT = ("accuracy", "global_step")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """An estimator that has trained on one device, and its metrics."""
    made = estimator(tmp_path_factory.mktemp("alone"), save_checkpoints_steps=4)
    return made, trained_and_evaluated(made, 12)


def line(folder, rate=0.1, **options):
    """An estimator of one number, which is quick: the slope of a line."""

    def model_fn(features, labels, mode):
        w = rx.Variable(0.0, name="w")
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions=w * features)
        loss = ((w * features - labels) ** 2).mean()
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=lambda: rx.optimizers.SGD(rate))

    return tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(folder, **options))


X = np.array([1, 2, 3], np.float32)


def line_input():
    return rx.data.Dataset.from_tensor_slices((X, 3 * X)).batch(3).repeat()


def spec_of(**options):
    """An estimator whose model_fn returns these."""

    def model_fn(features, labels, mode):
        rx.Variable(0.0, name="w")
        return tf.estimator.EstimatorSpec(mode, **options)

    return model_fn


class Recording(tf.estimator.SessionRunHook):
    """Notes every call, and stops after some steps."""

    def __init__(self, stop_after=None):
        self.calls = []
        self.results = []
        self._stop_after = stop_after

    def begin(self):
        self.calls.append("begin")

    def before_run(self, run_context):
        self.calls.append("before")

    def after_run(self, run_context, run_values):
        self.calls.append("after")
        self.results.append(run_values.results)
        if len(self.results) == self._stop_after:
            run_context.request_stop()

    def end(self, session):
        assert session is None
        self.calls.append("end")


# -- the same on all devices ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("num_replicas", [1, 2, 8])
def test_train_and_evaluate_gives_the_metrics_of_one_device(alone, num_replicas, tmp_path):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    made = estimator(tmp_path, strategy, save_checkpoints_steps=4)
    metrics = trained_and_evaluated(made, 12)
    expected = alone[1]
    assert set(metrics) == {"loss", "accuracy", "mean", "global_step"}
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=0, atol=1e-5, err_msg=name)
    assert [metrics[name] for name in EXACT] == [expected[name] for name in EXACT]
    for name in ("w", "b"):
        np.testing.assert_allclose(
            made.get_variable_value(name), alone[0].get_variable_value(name), atol=1e-5
        )
    predictions = list(made.predict(eval_input))
    assert len(predictions) == NUM_EXAMPLES
    np.testing.assert_array_equal([each["x"] for each in predictions], examples()[0])
    np.testing.assert_allclose(
        [each["logits"] for each in predictions],
        [each["logits"] for each in alone[0].predict(eval_input)],
        atol=1e-5,
    )


@pytest.mark.slow
def test_an_evaluation_is_that_of_numpy(alone):
    made, metrics = alone
    x, y = examples()
    logits = x @ made.get_variable_value("w") + made.get_variable_value("b")
    losses = np.logaddexp(0, logits) - y * logits
    np.testing.assert_allclose(metrics["loss"], losses.mean(), atol=1e-6)
    np.testing.assert_allclose(metrics["accuracy"], ((logits > 0) == y).mean(), atol=1e-6)


@pytest.mark.slow
def test_what_a_model_fn_assigns_counts_once_for_each_step(alone):
    """The call that creates the variables is no step."""
    made, _ = alone
    assert made.get_variable_value("calls") == 12
    assert made.get_variable_value("seen") == NUM_EXAMPLES + 4 * BATCH


def test_uneven_batches_count_every_example_once(tmp_path):
    """A batch of 2 for 4 replicas, of which two have no example."""
    x = np.array([1, 2, 3, 4, 5], np.float32)
    data = rx.data.Dataset.from_tensor_slices((x, 3 * x)).batch(3)
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    made = line(tmp_path, rate=0.01, train_distribute=strategy, eval_distribute=strategy)
    w = 0.0
    for part in (x[:3], x[3:]):
        w -= 0.01 * np.mean(2 * (w - 3) * part**2)
    made.train(lambda: data)
    np.testing.assert_allclose(made.get_variable_value("w"), w, rtol=1e-6)
    loss = made.evaluate(lambda: data)["loss"]
    np.testing.assert_allclose(loss, np.mean((w - 3) ** 2 * x**2), rtol=1e-6)
    np.testing.assert_allclose(list(made.predict(lambda: data)), w * x, rtol=1e-6)


def test_trained_on_8_replicas_evaluated_and_predicted_on_one(tmp_path):
    made = line(tmp_path, train_distribute=rx.MirroredStrategy())
    made.train(line_input, steps=20)
    made = line(tmp_path)
    assert made.evaluate(line_input, steps=1) == {"loss": pytest.approx(0), "global_step": 20}
    np.testing.assert_allclose(list(made.predict(lambda: [X])), 3 * X, rtol=1e-6)


def test_an_input_context_says_which_part_a_worker_reads(tmp_path):
    seen = []

    def input_fn(input_context, mode, params, config):
        seen.append((input_context.num_replicas_in_sync, mode, params, config.tf_random_seed))
        size = input_context.get_per_replica_batch_size(4)
        return rx.data.Dataset.range(8).map(lambda x: (np.float32(x), np.float32(x))).batch(size)

    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    made = line(tmp_path, rate=0.01, train_distribute=strategy, tf_random_seed=5)
    made.train(input_fn)
    assert seen == [(2, "train", None, 5)]
    assert made.get_variable_value("global_step") == 2


def test_the_strategy_of_a_scope_trains_where_the_config_has_none(tmp_path):
    replicas = []

    def model_fn(features, mode):
        w = rx.Variable(1.0)
        replicas.append(rx.get_strategy().num_replicas_in_sync)
        return tf.estimator.EstimatorSpec(
            mode, loss=(w * features).mean(), train_op=lambda: rx.optimizers.SGD(0.5)
        )

    made = tf.estimator.Estimator(model_fn, tmp_path)
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        made.train(lambda: [np.float32([1, 3])])
    assert set(replicas) == {2}
    assert made.get_variable_value("Variable") == 0  # 1 - 0.5 * 2


# -- checkpoints and steps -----------------------------------------------------------------------


def test_a_later_process_goes_on_where_the_earlier_one_ended(tmp_path):
    made = line(tmp_path / "parts", rate=0.01)
    made.train(line_input, steps=3)
    assert line(tmp_path / "parts", rate=0.01).train(line_input, max_steps=5) is not None
    whole = line(tmp_path / "whole", rate=0.01).train(line_input, steps=5)
    assert bits(made) == bits(whole)
    assert made.latest_checkpoint().endswith("ckpt-5")
    assert made.train(line_input, max_steps=5).latest_checkpoint().endswith("ckpt-5")


def test_training_ends_with_the_dataset_and_the_next_call_begins_it_anew(tmp_path):
    made = line(tmp_path, rate=0.01, save_checkpoints_steps=2)
    finite = lambda: rx.data.Dataset.from_tensor_slices((X, 3 * X)).batch(1).repeat(2)  # noqa: E731
    for expected in (6, 12):  # a multiple of the steps of a checkpoint, too
        assert made.train(finite).get_variable_value("global_step") == expected


def test_checkpoints_come_by_steps_and_only_some_are_kept(tmp_path):
    made = line(tmp_path, rate=0.01, save_checkpoints_steps=2, keep_checkpoint_max=2)
    made.train(line_input, steps=7)
    names = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("ckpt-"))
    assert names == ["ckpt-6", "ckpt-7"]


def test_checkpoints_come_by_seconds(tmp_path):
    class Slow(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            time.sleep(0.02)

    made = line(tmp_path, rate=0.01, save_checkpoints_secs=0.05, keep_checkpoint_max=None)
    made.train(line_input, steps=10, hooks=[Slow()])
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("ckpt-")]) > 2


def test_train_and_evaluate_evaluates_after_each_checkpoint_and_at_the_end(tmp_path):
    hook = Recording()
    made = line(tmp_path, rate=0.01, save_checkpoints_steps=2)
    train_spec = tf.estimator.TrainSpec(line_input, max_steps=5)
    eval_spec = tf.estimator.EvalSpec(line_input, steps=1, hooks=[hook])
    metrics, _ = tf.estimator.train_and_evaluate(made, train_spec, eval_spec)
    assert hook.calls.count("begin") == 3
    assert metrics["global_step"] == 5
    # A program that is started again has nothing to train, and gives the same metrics.
    assert tf.estimator.train_and_evaluate(made, train_spec, eval_spec)[0] == metrics
    rare = tf.estimator.EvalSpec(line_input, steps=1, hooks=[hook], throttle_secs=1000)
    hook.calls.clear()
    train_spec = tf.estimator.TrainSpec(line_input, max_steps=10)
    assert tf.estimator.train_and_evaluate(made, train_spec, rare)[0]["global_step"] == 10
    assert hook.calls.count("begin") == 2  # after the first checkpoint, and at the end


def test_an_older_checkpoint_is_evaluated_by_its_path(tmp_path):
    made = line(tmp_path, rate=0.01)
    older = made.train(line_input, steps=1).latest_checkpoint()
    before = made.evaluate(line_input, steps=1)
    made.train(line_input, steps=5)
    assert made.evaluate(line_input, steps=1, checkpoint_path=older) == before
    assert made.evaluate(line_input, steps=1)["loss"] < before["loss"]


def test_variables_of_one_name_get_numbers(tmp_path):
    def model_fn(features, mode):
        values = [rx.Variable(float(i), name=name) for i, name in enumerate(("w", "w_1", "w", "w"))]
        loss = sum(values) * features.mean()
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=lambda: rx.optimizers.SGD(0.0))

    made = tf.estimator.Estimator(model_fn, tmp_path).train(lambda: [X])
    found = {name: float(made.get_variable_value(name)) for name in ("w", "w_1", "w_2", "w_3")}
    assert found == {"w": 0, "w_1": 1, "w_2": 2, "w_3": 3}


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_every_kind_of_variable_begins_with_its_initial_value(num_replicas, tmp_path):
    kinds = [
        (aggregation, synchronization)
        for aggregation in ("SUM", "MEAN", "ONLY_FIRST_REPLICA")
        for synchronization in ("ON_READ", "ON_WRITE")
    ]

    def model_fn(features, mode):
        for aggregation, synchronization in kinds:
            variable = rx.Variable(
                3.0,
                False,
                name=f"{aggregation} {synchronization}",
                aggregation=rx.VariableAggregation[aggregation],
                synchronization=rx.VariableSynchronization[synchronization],
            )
            variable.assign_add(1.0)
        w = rx.Variable(1.0, name="w")
        return tf.estimator.EstimatorSpec(
            mode, loss=w * features.mean(), train_op=lambda: rx.optimizers.SGD(0.0)
        )

    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    config = tf.estimator.RunConfig(tmp_path, train_distribute=strategy)
    made = tf.estimator.Estimator(model_fn, config=config).train(lambda: [X])
    found = {kind: float(made.get_variable_value(" ".join(kind))) for kind in kinds}
    expected = dict.fromkeys(kinds, 4.0)
    expected["SUM", "ON_READ"] = 4.0 * num_replicas  # each replica has 3 of its own, and adds 1
    expected["SUM", "ON_WRITE"] = 3.0 + num_replicas
    assert found == expected


def test_prediction_leaves_labels_out(tmp_path):
    made = line(tmp_path).train(line_input, steps=1)
    seen = []

    def model_fn(features, labels, mode):
        seen.append(labels)
        return tf.estimator.EstimatorSpec(mode, predictions=features * rx.Variable(0.0, name="w"))

    made = tf.estimator.Estimator(model_fn, tmp_path)
    assert len(list(made.predict(lambda: [(X, X)]))) == 3
    assert set(seen) == {None}


@pytest.mark.slow
def test_dropout_has_other_masks_in_each_step_and_a_resumed_run_the_same(tmp_path):
    def model_fn(features, mode):
        w = rx.Variable(np.ones(8, np.float32), name="w")
        key = rx.random.Generator(3).next_replica_key()
        mask = jax.random.bernoulli(key, 0.5, (8,))
        return tf.estimator.EstimatorSpec(
            mode,
            loss=(w * mask).sum() * features.mean(),
            train_op=lambda: rx.optimizers.SGD(0.1),
        )

    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def trained(folder, *steps):
        for number in steps:
            config = tf.estimator.RunConfig(tmp_path / folder, train_distribute=strategy)
            made = tf.estimator.Estimator(model_fn, config=config)
            made.train(lambda: rx.data.Dataset.from_tensors(X).repeat(), steps=number)
        return made

    whole = trained("whole", 4)
    assert bits(trained("parts", 1, 3)) == bits(whole)
    assert len(set(whole.get_variable_value("w").tolist())) > 2


# -- hooks and the log ---------------------------------------------------------------------------


def test_hooks_are_called_around_each_step_and_may_stop(tmp_path):
    made, hook = line(tmp_path, rate=0.01), Recording(stop_after=2)
    made.train(line_input, steps=5, hooks=[hook])
    assert hook.calls == ["begin", "before", "after", "before", "after", "end"]
    assert hook.results[0] == pytest.approx(42.0)  # the mean of 9, 36 and 81
    assert made.get_variable_value("global_step") == 2
    evaluating, predicting = Recording(stop_after=1), Recording(stop_after=1)
    made.evaluate(line_input, hooks=[evaluating])
    assert evaluating.results == [None]
    assert len(list(made.predict(line_input, hooks=[predicting]))) == 3
    assert predicting.calls == ["begin", "before", "after", "end"]


def test_the_loss_is_logged_every_so_many_steps(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "replicax.estimator"):
        line(tmp_path, rate=0.0, log_step_count_steps=2).train(line_input, steps=5)
    assert [record.getMessage() for record in caplog.records] == [
        "loss = 42, step = 2",
        "loss = 42, step = 4",
    ]


@pytest.mark.slow
def test_predictions_come_as_asked_for(alone):
    made, _ = alone
    (first, *_) = made.predict(eval_input, predict_keys="class")
    assert set(first) == {"class"}
    sizes = [
        batch["x"].shape for batch in made.predict(eval_input, ["x"], yield_single_examples=False)
    ]
    assert sizes == [(BATCH, 4)] * 7 + [(2, 4)]


# -- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [None, "two replicas"])
def test_an_optimizer_that_is_no_function_is_refused(strategy, tmp_path):
    def model_fn(features, mode):
        return tf.estimator.EstimatorSpec(mode, loss=0.0, train_op=rx.optimizers.SGD(0.1))

    strategy = strategy and rx.MirroredStrategy(["CPU:0", "CPU:1"])
    made = tf.estimator.Estimator(
        model_fn, config=tf.estimator.RunConfig(tmp_path, train_distribute=strategy)
    )
    with pytest.raises((ValueError, RuntimeError), match="optimizer") as raised:
        made.train(lambda: [X])
    assert "train_op is a function that makes it." in raised.value.__notes__[-1]


MODELS = {
    "no spec": (
        lambda features: 3,
        TypeError,
        "the model_fn returned 3 for the mode 'train'; expected an EstimatorSpec with that mode.",
    ),
    "another mode": (
        lambda features: tf.estimator.EstimatorSpec("eval", loss=0.0),
        TypeError,
        "for the mode 'train'; expected an EstimatorSpec with that mode.",
    ),
    "no variable": (
        lambda features, mode: tf.estimator.EstimatorSpec(
            mode, loss=0.0, train_op=lambda: rx.optimizers.SGD(0.1)
        ),
        ValueError,
        r"the model_fn created no trainable variable: \[\]. Create",
    ),
    "another optimizer": (
        spec_of(loss=0.0, train_op=lambda: "sgd"),
        TypeError,
        "train_op returned 'sgd'; expected a replicax.Optimizer",
    ),
    "no loss": (spec_of(), ValueError, "for 'train' needs loss: one number, .* Got None."),
    "losses": (
        spec_of(loss=np.zeros(3), train_op=lambda: None),
        ValueError,
        "needs loss: one number, the mean of the examples, such as losses.mean",
    ),
    "a metric that is a number": (
        spec_of(loss=0.0, train_op=lambda: None, eval_metric_ops={"a": 0.5}),
        ValueError,
        r"eval_metric_ops\['a'\] is 0.5; expected a replicax.metrics.Metric",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_fn_is_told_what_is_wrong_with_it(name, tmp_path):
    model_fn, error, text = MODELS[name]
    made = tf.estimator.Estimator(model_fn, tmp_path)
    batch = lambda: [(X, X)]  # noqa: E731
    with pytest.raises(error, match=text):
        made.train(batch)


def test_a_variable_that_comes_later_is_refused(tmp_path):
    calls = []

    def model_fn(features, mode):
        calls.append(1)
        w = sum(rx.Variable(0.0, name=f"w{i}") for i in range(1 + (len(calls) > 2)))
        return tf.estimator.EstimatorSpec(
            mode, loss=w * features.mean(), train_op=lambda: rx.optimizers.SGD(0.1)
        )

    with pytest.raises(ValueError, match="created a variable 'w1', and did not in its first call"):
        tf.estimator.Estimator(model_fn, tmp_path).train(lambda: [X])


def test_an_error_of_the_first_call_can_be_repaired(tmp_path):
    fails = [True]

    def model_fn(features, mode):
        w = rx.Variable(1.0, name="w")
        if fails.pop():
            raise KeyError("a mistake of the user")
        return tf.estimator.EstimatorSpec(
            mode, loss=w * features.mean(), train_op=lambda: rx.optimizers.SGD(0.5)
        )

    made = tf.estimator.Estimator(model_fn, tmp_path)
    with pytest.raises(KeyError, match="a mistake of the user"):
        made.train(lambda: [X])
    fails[:] = [False] * 9
    assert made.train(lambda: [X]).get_variable_value("w") == 0  # 1 - 0.5 * 2


def test_a_variable_of_another_shape_than_the_checkpoint_is_named(tmp_path):
    line(tmp_path).train(line_input, steps=1)

    def model_fn(features, labels, mode):
        w = rx.Variable(np.zeros(2, np.float32), name="w")
        new = rx.Variable(0.0, name="new")
        return tf.estimator.EstimatorSpec(mode, loss=w.sum() + new)

    with pytest.raises(ValueError, match="2 differences") as raised:
        tf.estimator.Estimator(model_fn, tmp_path).evaluate(line_input, steps=1)
    assert "model/w: shape (2,) here, () in the checkpoint" in str(raised.value)
    assert "model/new: missing in the checkpoint" in str(raised.value)


CALLS = {
    "no folder": (
        lambda folder: tf.estimator.Estimator(len),
        ValueError,
        r"an Estimator keeps its checkpoints in one folder; got \[\]. Pass model_dir",
    ),
    "two folders": (
        lambda folder: tf.estimator.Estimator(len, "/a", tf.estimator.RunConfig("/b")),
        ValueError,
        r"got \['/a', '/b'\]",
    ),
    "no function": (
        lambda folder: tf.estimator.Estimator(3, folder),
        TypeError,
        "model_fn is 3; expected a function.",
    ),
    "no config": (
        lambda folder: tf.estimator.Estimator(len, folder, {"a": 1}),
        TypeError,
        "config is {'a': 1}; expected a RunConfig.",
    ),
    "two ways to save": (
        lambda folder: tf.estimator.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=2),
        ValueError,
        "save_checkpoints_steps=1 and save_checkpoints_secs=2. Leave out one of the two.",
    ),
    "never save": (
        lambda folder: tf.estimator.RunConfig(save_checkpoints_steps=0),
        ValueError,
        "save_checkpoints_steps of a RunConfig is 0; expected more than 0.",
    ),
    "the name of a strategy": (
        lambda folder: tf.estimator.RunConfig(train_distribute="mirrored"),
        TypeError,
        "train_distribute of a RunConfig is 'mirrored'; expected a Strategy.",
    ),
    "steps twice": (
        lambda folder: line(folder).train(line_input, steps=1, max_steps=2),
        ValueError,
        "train got steps=1 and max_steps=2. Leave out one of the two.",
    ),
    "no step": (
        lambda folder: line(folder).train(line_input, steps=0),
        ValueError,
        "steps is 0; expected 1 or more.",
    ),
    "no total": (
        lambda folder: line(folder).train(line_input, max_steps=0),
        ValueError,
        "max_steps is 0; expected 1 or more.",
    ),
    "a dataset": (
        lambda folder: line(folder).train(line_input()),
        TypeError,
        "expected a function that returns a dataset.",
    ),
    "an empty dataset": (
        lambda folder: line(folder).train(lambda: []),
        ValueError,
        "input_fn returned an empty dataset.",
    ),
    "examples": (
        lambda folder: line(folder).train(lambda: rx.data.Dataset.range(3)),
        ValueError,
        "its examples are not batched. Batch them by the global batch size",
    ),
    "examples of each replica": (
        lambda folder: line(folder).train(lambda input_context: [(1.0, 2.0)]),
        ValueError,
        "one row for each example",
    ),
    "a hook of another kind": (
        lambda folder: line(folder).train(line_input, [print], 1),
        TypeError,
        "hooks has <built-in function print>; expected a SessionRunHook.",
    ),
    "evaluation of nothing": (
        lambda folder: line(folder).evaluate(line_input),
        ValueError,
        "has no checkpoint. Call train first, or pass checkpoint_path.",
    ),
    "prediction of nothing": (
        lambda folder: next(line(folder).predict(line_input)),
        ValueError,
        "has no checkpoint. Call train first, or pass checkpoint_path.",
    ),
    "a mode": (
        lambda folder: tf.estimator.EstimatorSpec("predict"),
        ValueError,
        r"got the mode 'predict'; expected one of \('train', 'eval', 'infer'\).",
    ),
    "no predictions": (
        lambda folder: tf.estimator.EstimatorSpec("infer"),
        ValueError,
        "for 'infer' needs predictions: arrays with one row for each example.",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_is_named(name, tmp_path):
    call, error, text = CALLS[name]
    with pytest.raises(error, match=text):
        call(tmp_path)


def test_no_variable_has_an_unknown_name(tmp_path):
    made = line(tmp_path).train(line_input, steps=1)
    assert {"w", "global_step", "optimizer/iterations"} <= set(made.get_variable_names())
    with pytest.raises(rx.ReplicaxError, match="'v'"):
        made.get_variable_value("v")


def test_it_is_written_with_public_names_only():
    public = {id(thing) for _, thing in documented_names()}
    for path in pathlib.Path(estimator_package.__file__).parent.glob("*.py"):
        imports = [each for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                   if isinstance(each, ast.Import | ast.ImportFrom)]  # fmt: skip
        for each in imports:
            module = each.module if isinstance(each, ast.ImportFrom) else ""
            if module.startswith("replicax.") and not module.startswith("replicax.estimator"):
                found = importlib.import_module(module)
                assert all(id(getattr(found, name.name)) in public for name in each.names), path
            elif not module:
                names = [name.name for name in each.names if name.name.startswith("replicax")]
                assert names in ([], ["replicax"])


def test_private_attributes_of_other_packages_are_not_used():
    """An underscore is behind `self`, or behind an object of the package itself."""
    for path in pathlib.Path(estimator_package.__file__).parent.glob("*.py"):
        private = {
            f"{ast.unparse(each.value)}.{each.attr}"
            for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(each, ast.Attribute) and re.match("_[a-z]", each.attr)
        }
        allowed = {"estimator._train", "estimator._latest_step"}
        assert {name for name in private if not name.startswith("self.")} <= allowed, path
