"""`check_equivalence` finds a result that depends on the number of replicas, and says how."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import CheckError
from replicax.losses import compute_average_loss
from replicax.testing.equivalence import check_equivalence
from replicax.testing.scaling import advice_for, describe_ratio, uniform_ratio

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(2, 8, 3).astype(np.float32)
Y = RANDOM.randn(2, 8).astype(np.float32)


def training(loss_of, *, reduce_op="SUM", what=lambda w, loss: {"w": w}, size=8):
    """A training function with this loss of the losses of a replica's examples."""

    def train(strategy):
        with strategy.scope():
            w = rx.Variable(np.ones(3, np.float32), name="w")

        def update(strategy, gradient):
            w.assign_sub(0.1 * strategy.reduce(reduce_op, gradient, axis=None))

        def step(x, y):
            loss, gradient = rx.value_and_grad(lambda: loss_of(jnp.square(x @ w.value - y)), w)
            rx.get_replica_context().merge_call(update, args=(gradient,))
            return loss

        compiled = rx.function(step)
        for x, y in zip(X, Y, strict=True):
            batch = strategy.distribute_batch((x[:size], y[:size]))
            loss = strategy.run(compiled, args=batch)
            yield what(w, strategy.reduce("SUM", loss, axis=None))

    return train


def test_a_right_loss_passes_on_uneven_batches_too():
    report = check_equivalence(training(compute_average_loss, size=7), replicas=(1, 3))
    assert (report.replicas, report.num_steps, report.num_values) == ((1, 3), 2, 1)
    assert 0 <= report.largest_difference < 1e-5
    text = "<EquivalenceReport: equal on 1, 3 replicas, 2 steps of 1 values, largest difference"
    assert repr(report).startswith(text)


def test_a_mean_over_each_replica_is_n_times_too_large():
    with pytest.raises(CheckError, match="depend on the number of replicas") as caught:
        check_equivalence(training(jnp.mean), replicas=(1, 2, 8))
    text = str(caught.value)
    assert "on 2 replicas, after step 1: variable 'w' at ['w'] differs by" in text
    assert "Its change in this step is 2 times as large: the number of replicas." in text
    assert "Its change in this step is 8 times as large: the number of replicas." in text
    assert "use compute_average_loss" in text
    assert isinstance(caught.value, AssertionError)


def test_an_average_of_scaled_gradients_is_n_times_too_small():
    train = training(compute_average_loss, reduce_op="MEAN")
    with pytest.raises(
        CheckError, match=r"times as large \(1/2\): 1 / the number of replicas"
    ) as e:
        check_equivalence(train, replicas=(1, 2), steps=1)
    assert "once too often" in str(e.value)


def test_a_loss_that_is_too_large_is_named_by_its_value():
    train = training(jnp.mean, what=lambda w, loss: {"loss": loss})
    text = r"the value at \['loss'\] differs by .* Its value is [0-9.]+ times as large"
    with pytest.raises(CheckError, match=text):
        check_equivalence(train, replicas=(1, 2), steps=1)


def test_the_reference_may_have_several_replicas():
    with pytest.raises(CheckError, match="2 times as large: the ratio of the replicas"):
        check_equivalence(training(jnp.mean), replicas=(2, 4), steps=1)


def test_a_bare_yield_compares_all_variables():
    train = training(jnp.mean, what=lambda w, loss: None)
    with pytest.raises(CheckError, match="after step 1: variable 'w' differs"):
        check_equivalence(train, replicas=(1, 2), steps=1)
    train = training(compute_average_loss, what=lambda w, loss: None)
    assert check_equivalence(train, replicas=(1, 2), steps=1).num_values == 1


def test_what_is_no_scaling_is_said_to_be_none():
    def train(strategy):
        with strategy.scope():
            w = rx.Variable([1.0, 2.0], name="w")
        w.assign([1.0, 5.0 * strategy.num_replicas_in_sync])
        yield (w,)

    with pytest.raises(CheckError, match=r"'w' at \[0\] .* not a matter of scaling"):
        check_equivalence(train, replicas=(1, 3))


def test_a_nan_on_one_side_is_a_difference_and_on_both_is_none():
    def train(strategy):
        yield {"x": np.array([np.nan, np.nan if strategy.num_replicas_in_sync > 2 else 1.0])}

    assert check_equivalence(train, replicas=(1, 2)).largest_difference == 0
    with pytest.raises(CheckError, match=r"differs by inf at \[1\]: nan instead of 1"):
        check_equivalence(train, replicas=(1, 3))


def test_different_structures_shapes_and_numbers_of_steps_are_found():
    def names(strategy):
        yield {f"x{strategy.num_replicas_in_sync}": 1.0}

    def shapes(strategy):
        yield np.zeros(strategy.num_replicas_in_sync)

    def numbers(strategy):
        yield from [1.0] * strategy.num_replicas_in_sync

    for train, text in [
        (names, r"step 1 yields .*x2.* instead of .*x1"),
        (shapes, r"the value has shape \(2,\) instead of \(1,\)"),
        (numbers, r"there are 2 steps instead of 1"),
    ]:
        with pytest.raises(CheckError, match=text):
            check_equivalence(train, replicas=(1, 2))


def test_steps_end_an_endless_training_and_close_it():
    closed = []

    def train(strategy):
        try:
            while True:
                yield 1.0
        finally:
            closed.append(strategy.num_replicas_in_sync)

    assert check_equivalence(train, replicas=(1, 2), steps=3).num_steps == 3
    assert closed == [1, 2]


def test_an_error_of_the_training_says_on_how_many_replicas():
    def train(strategy):
        yield 1.0
        if strategy.num_replicas_in_sync == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        check_equivalence(train, replicas=(1, 2))
    assert caught.value.__notes__ == ["It was raised by the training on 2 replicas."]


def test_wrong_use_is_explained():
    with pytest.raises(ValueError, match="set_virtual_devices"):
        check_equivalence(training(jnp.mean), replicas=(1, 99))
    with pytest.raises(ValueError, match="two or more positive numbers"):
        check_equivalence(training(jnp.mean), replicas=(1,))
    with pytest.raises(TypeError, match="expected a generator"):
        check_equivalence(lambda strategy: None, replicas=(1, 2))
    with pytest.raises(ValueError, match="train yielded nothing on 1 replicas"):
        check_equivalence(lambda strategy: [], replicas=(1, 2))


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        ([1.0, 2.0], [2.0, 4.0], 2.0),
        ([1.0, 2.0], [-1.0, -2.0], -1.0),
        ([1.0, 2.0], [2.0, 1.0], None),
        ([0.0, 0.0], [1.0, 1.0], None),
        ([1.0], [np.nan], None),
        ([1.0, 1.0], [0.0, 0.0], None),
    ],
)
def test_a_ratio_is_one_number_or_none(reference, other, expected):
    found = uniform_ratio(np.array(reference), np.array(other))
    assert found == (None if expected is None else pytest.approx(expected))


def test_ratios_are_put_in_words():
    assert describe_ratio(8.01, 8, 1) == "8 times as large: the number of replicas"
    assert describe_ratio(0.3, 8, 1) == "0.3 times as large"
    assert "not a matter of scaling" in advice_for(0.3, 8, 1)
