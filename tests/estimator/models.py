"""What the tests of the Estimator train: a model with everything that a step may touch."""

import jax
import numpy as np
import optax

import replicax as rx
import replicax.tf as tf

NUM_EXAMPLES = 44
BATCH = 6  # the last batch has 2 examples


def examples():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    return x, (x @ np.float32([1, -2, 3, 0]) > 0).astype(np.float32)


def train_input(params):
    """Shuffled, and again and again."""
    data = rx.data.Dataset.from_tensor_slices(examples()).shuffle(NUM_EXAMPLES, seed=1)
    return data.batch(params["batch"]).repeat()


def eval_input(params):
    return rx.data.Dataset.from_tensor_slices(examples()).batch(params["batch"])


def model_fn(features, labels, mode, params):
    """A layer, counts of what it has seen, and metrics."""
    w = rx.Variable(0.1 * jax.random.normal(jax.random.key(0), (4,)), name="w")
    b = rx.Variable(0.0, name="b")
    calls = rx.Variable(0.0, False, name="calls", aggregation=tf.VariableAggregation.MEAN)
    seen = rx.Variable(
        0.0, False, name="seen",
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )  # fmt: skip
    logits = features @ w + b
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(
            mode, predictions={"logits": logits, "class": logits > 0, "x": features}
        )
    loss = optax.sigmoid_binary_cross_entropy(logits, labels).mean()
    if mode == tf.estimator.ModeKeys.TRAIN:
        calls.assign(calls + 1)
        seen.assign_add(float(len(features)))
    mean = rx.metrics.Mean("mean_logit")
    mean.update_state(logits)
    accuracy = rx.metrics.BinaryAccuracy("accuracy")
    accuracy.update_state(labels, jax.nn.sigmoid(logits))
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=lambda: rx.optimizers.Adam(params["rate"]),
        eval_metric_ops={"accuracy": accuracy, "mean": mean},
    )


def estimator(folder, strategy=None, **options):
    """An estimator of the model, the same strategy for both loops."""
    config = tf.estimator.RunConfig(
        folder, train_distribute=strategy, eval_distribute=strategy, **options
    )
    return tf.estimator.Estimator(model_fn, config=config, params={"batch": BATCH, "rate": 0.05})


def trained_and_evaluated(made, max_steps):
    """The metrics of the last evaluation."""
    metrics, exports = tf.estimator.train_and_evaluate(
        made,
        tf.estimator.TrainSpec(train_input, max_steps=max_steps),
        tf.estimator.EvalSpec(eval_input, steps=None),
    )
    assert exports == []
    return metrics


def bits(made):
    """Every value of the latest checkpoint, by name."""
    return {
        name: np.asarray(made.get_variable_value(name)).tobytes().hex()
        for name in made.get_variable_names()
    }
