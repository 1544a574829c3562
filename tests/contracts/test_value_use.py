"""A PerReplica value refuses to be one array; a Mirrored one is one."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

USES = {
    "add": lambda v: v + 1,
    "reflected add": lambda v: 1 + v,
    "subtract": lambda v: v - v,
    "multiply by array": lambda v: jnp.ones(()) * v,
    "multiply by numpy": lambda v: np.ones(()) * v,
    "divide": lambda v: v / 2,
    "power": lambda v: v**2,
    "matmul": lambda v: v @ v,
    "negate": operator.neg,
    "abs": abs,
    "less than": lambda v: v < 1,
    "float": float,
    "int": int,
    "complex": complex,
    "bool": bool,
    "if": lambda v: 1 if v else 0,
    "not": lambda v: not v,
    "index": lambda v: [1, 2][v],
    "subscript": lambda v: v[0],
    "len": len,
    "iteration": list,
    "unpacking": lambda v: (lambda *a: a)(*v),
    "in": lambda v: 1 in v,
    "np.asarray": np.asarray,
    "np.sum": np.sum,
    "np.add": lambda v: np.add(v, 1),
    "jnp.asarray": jnp.asarray,
    "jnp.sum": jnp.sum,
    "jnp.sin": jnp.sin,
    "jnp.add": lambda v: jnp.add(v, 1.0),
    "jnp.where": lambda v: jnp.where(True, v, 0.0),
    "jnp.stack": lambda v: jnp.stack([v, v]),
    "round": round,
    "divmod": lambda v: divmod(v, 2),
    "numpy()": lambda v: v.numpy(),
    "format": lambda v: f"{v:.3f}",
}

MIRRORED_USES = {
    "add": (lambda v: v + 1, 4.0),
    "reflected subtract": (lambda v: 1 - v, -2.0),
    "two of them": (lambda v: v * v, 9.0),
    "with an array": (lambda v: jnp.ones(()) * v, 3.0),
    "with numpy": (lambda v: np.float32(2) * v, 6.0),
    "negate": (operator.neg, -3.0),
    "power": (lambda v: v**2, 9.0),
    "compare": (lambda v: v < 4, True),
    "equal": (lambda v: v == 3, True),
    "float": (float, 3.0),
    "int": (int, 3),
    "if": (lambda v: 1 if v else 0, 1),
    "np.asarray": (np.asarray, 3.0),
    "numpy()": (lambda v: v.numpy(), 3.0),
    "np.add": (lambda v: np.add(v, 1), 4.0),
    "jnp.sum": (jnp.sum, 3.0),
    "jnp.where": (lambda v: jnp.where(True, v, 0.0), 3.0),
    "jnp.stack": (lambda v: jnp.stack([v, v])[1], 3.0),
    "jnp.sin": (lambda v: jnp.sin(v - 3), 0.0),
    "jax.nn.relu": (jax.nn.relu, 3.0),
    "jax.jit": (lambda v: jax.jit(lambda x: x + 1)(v), 4.0),
    "jax.vmap": (lambda v: jax.vmap(lambda x: x + 1)(v[None])[0], 4.0),
    "jax.grad": (lambda v: jax.grad(lambda x: x * x)(v), 6.0),
    "array method": (lambda v: v.sum(), 3.0),
    "shape": (lambda v: len(v.shape), 0),
    "round": (round, 3.0),
    "format": (lambda v: float(f"{v:.3f}"), 3.0),
}


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.fixture(scope="module")
def per_replica():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    return strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + jnp.ones(()))


@pytest.fixture(scope="module", params=["eager", "compiled"])
def mirrored_value(request):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])

    def replica_fn():
        return rx.get_replica_context().all_reduce("SUM", 1.0)

    value = strategy.run(rx.function(replica_fn) if request.param == "compiled" else replica_fn)
    assert isinstance(value, rx.Mirrored)
    return value


@pytest.mark.parametrize("use", USES)
def test_a_per_replica_value_is_no_array(per_replica, use):
    with pytest.raises(TypeError, match="PerReplica") as caught:
        USES[use](per_replica)
    texts = [str(error) for error in chain(caught.value)]
    assert any("strategy.reduce" in t and "experimental_local_results" in t for t in texts), texts


def test_values_are_shown_by_an_f_string(per_replica, mirrored_value):
    assert (f"{per_replica}", f"{mirrored_value}") == (str(per_replica), str(mirrored_value))


@pytest.mark.parametrize("use", ["add", "float", "if", "np.asarray", "jnp.sum", "iteration"])
def test_a_per_replica_value_of_any_strategy_is_no_array(strategy, use):
    value = strategy.experimental_distribute_values_from_function(lambda ctx: jnp.ones(()))
    with pytest.raises(TypeError, match="PerReplica") as caught:
        USES[use](value)
    assert any("experimental_local_results" in str(error) for error in chain(caught.value))


@pytest.mark.parametrize("use", ["add", "jnp.sum", "if"])
def test_a_per_replica_value_is_no_array_inside_a_compiled_function_either(many, use):
    value = many.experimental_distribute_values_from_function(lambda ctx: jnp.ones(()))

    @rx.function
    def misuse():
        return USES[use](many.run(lambda v: v + 1, args=(value,)))

    with pytest.raises(TypeError, match="PerReplica") as caught:
        misuse()
    assert any("experimental_local_results" in str(error) for error in chain(caught.value))


def test_a_per_replica_value_can_be_kept_in_sets_and_compared_by_identity(per_replica):
    assert per_replica in {per_replica}
    assert hash(per_replica) == hash(per_replica)


@pytest.mark.parametrize("use", MIRRORED_USES)
def test_a_mirrored_value_works_as_an_array(mirrored_value, use):
    call, expected = MIRRORED_USES[use]
    np.testing.assert_allclose(call(mirrored_value), expected)
