"""`compute_average_loss`: the gradients of all replicas add up to the gradient of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import ContextError, LossError
from replicax.losses import compute_average_loss, scale_regularization_loss
from tests.contracts.executors import EXECUTORS
from tests.contracts.strategies import central, mirrored

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(24, 3).astype(np.float32)
Y = RANDOM.randn(24).astype(np.float32)
W = RANDOM.rand(24).astype(np.float32)
START = np.array([1.0, -1.0, 0.5], np.float32)
SIZES = {"even": 24, "uneven": 13, "empty": 2}  # 2 examples leave replicas empty on 3 and 8


def one_device(size, *, weighted=False, penalty=0.0):
    def loss(w):
        losses = jnp.square(X[:size] @ w - Y[:size])
        return (losses * (W[:size] if weighted else 1)).mean() + penalty * jnp.square(w).sum()

    return jax.value_and_grad(loss)(START)


def distributed(strategy, executor, size, *, weighted=False, penalty=0.0, **options):
    with strategy.scope():
        w = rx.Variable(START)

    def step(x, y, weight):
        def loss():
            losses = jnp.square(x @ w.value - y)
            mean = compute_average_loss(losses, weight if weighted else None, **options)
            return mean + scale_regularization_loss(penalty * jnp.square(w.value))

        return rx.value_and_grad(loss, w)

    batch = strategy.distribute_batch((X[:size], Y[:size], W[:size]))
    parts = EXECUTORS[executor](strategy, step, batch)
    return strategy.reduce("SUM", parts, axis=None)


@pytest.mark.parametrize("executor", ["eager", "compiled"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
def test_loss_and_gradient_are_those_of_one_device(num_replicas, size, executor):
    expected = one_device(size, weighted=True, penalty=0.3)
    found = distributed(mirrored(num_replicas), executor, size, weighted=True, penalty=0.3)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_the_same_under_central_storage():
    for mine, other in zip(distributed(central(3), "compiled", 13), one_device(13), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_a_given_global_batch_size_is_used_as_it_is():
    loss, gradient = distributed(mirrored(3), "compiled", 13, global_batch_size=26)
    expected = one_device(13)
    np.testing.assert_allclose(2 * loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(2 * gradient, expected[1], rtol=1e-5)


def test_counting_equal_batches_communicates_nothing():
    strategy = mirrored(3)
    step = rx.function(compute_average_loss)
    even = strategy.distribute_batch(Y[:12])
    assert "all-reduce" not in step.lower_run(strategy, even).compile().as_text()
    uneven = strategy.distribute_batch(Y[:13])
    assert "all-reduce" in step.lower_run(strategy, uneven).compile().as_text()


def test_all_replicas_empty_give_zero_and_not_nan():
    strategy = mirrored(2)
    for executor in ("eager", "compiled"):
        empty = strategy.distribute_batch(np.zeros((0,), np.float32))
        part = EXECUTORS[executor](strategy, compute_average_loss, (empty,))
        assert float(strategy.reduce("SUM", part, axis=None)) == 0.0


def test_outside_any_strategy_it_is_the_mean_also_inside_jit():
    assert float(compute_average_loss([1.0, 3.0])) == 2.0
    assert float(jax.jit(compute_average_loss)(np.array([1.0, 3.0]))) == 2.0
    assert float(compute_average_loss([[1.0, 3.0], [4.0, 4.0]])) == 6.0  # dims but the first: a sum
    assert float(scale_regularization_loss([1.0, 3.0])) == 4.0


@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_a_regularization_loss_is_divided_by_the_number_of_replicas(executor):
    strategy = mirrored(3)
    terms = jnp.array([1.0, 5.0])
    parts = EXECUTORS[executor](strategy, lambda: scale_regularization_loss(terms), ())
    assert [float(part) for part in strategy.experimental_local_results(parts)] == [2.0] * 3


def test_a_small_float_keeps_its_type_and_counts_rightly():
    loss = compute_average_loss(np.ones(3001, np.float16))
    assert loss.dtype == np.float16
    assert float(loss) == 1.0
    assert compute_average_loss(np.array([1, 2], np.int32)).dtype == np.float32


def test_across_replicas_only_a_given_size_will_do():
    strategy = mirrored(2)
    with strategy.scope():
        assert float(compute_average_loss([1.0, 3.0], global_batch_size=4)) == 1.0
        with pytest.raises(ContextError, match=r"compute_average_loss was called inside .*scope"):
            compute_average_loss([1.0, 3.0])
        with pytest.raises(RuntimeError, match=r"scale_regularization_loss was called inside"):
            scale_regularization_loss(1.0)


MISTAKES = {
    "averaged": (lambda: compute_average_loss(jnp.float32(2.0)), "averaged or summed already"),
    "weights": (
        lambda: compute_average_loss([1.0, 2.0], sample_weight=[1.0, 2.0, 3.0]),
        r"sample_weight of shape \(3,\) for losses of shape \(2,\)",
    ),
    "float size": (lambda: compute_average_loss([1.0], None, 8.0), "global_batch_size=8.0"),
    "size of each replica": (
        lambda: compute_average_loss([1.0], None, np.array([4, 4])),
        "expected the number of examples",
    ),
    "no size": (lambda: compute_average_loss([1.0], None, 0), "expected at least 1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name):
    act, text = MISTAKES[name]
    with pytest.raises(LossError, match=text):
        act()


def test_an_averaged_loss_is_refused_in_a_compiled_step_too():
    strategy = mirrored(2)
    step = rx.function(lambda x: compute_average_loss(x.mean()))
    with pytest.raises(LossError, match=r"leave out \.mean\(\)"):
        strategy.run(step, args=(strategy.distribute_batch(Y),))


def test_inside_jit_of_an_eager_run_the_error_names_it():
    strategy = mirrored(2)
    step = jax.jit(functools.partial(compute_average_loss))
    with pytest.raises(ContextError, match=r"compute_average_loss was reached inside jax\.jit"):
        strategy.run(step, args=(strategy.distribute_batch(Y),))
