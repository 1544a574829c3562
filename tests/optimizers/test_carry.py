"""Functional steps, ``state, metrics = step(state, batch)``, over variables."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import replicax as rx
from tests.optimizers.problem import mirrored

X = np.random.RandomState(0).randn(7, 2).astype(np.float32)
TX = optax.adam(0.1)
ON_READ = rx.VariableSynchronization.ON_READ


class State(NamedTuple):
    params: object
    opt: object
    seen: object


def apply(params, x):
    return x @ params["w"] + params["b"]


def initial(kind):
    params = {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}
    if kind == "TrainState":
        return TrainState.create(apply_fn=apply, params=params, tx=TX)
    return State(params, TX.init(params), 0)


def functional(kind, combine):
    """A step as users of ``pmap`` write it."""

    def step(state, x):
        loss, grads = jax.value_and_grad(lambda params: jnp.sum(apply(params, x) ** 2) / len(X))(
            state.params
        )
        grads = combine(grads)
        if kind == "TrainState":
            return state.apply_gradients(grads=grads), loss
        updates, opt = TX.update(grads, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, opt, state.seen + len(x)), loss

    return step


def summed(grads):
    return rx.get_replica_context().all_reduce("SUM", grads)


@pytest.fixture(params=[True, False], ids=["compiled", "eager"])
def wrap(request):
    return rx.function if request.param else lambda step: step


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", ["TrainState", "NamedTuple"])
def test_a_carried_state_trains_as_on_one_device(kind, count, wrap):
    alone, step = initial(kind), jax.jit(functional(kind, lambda grads: grads))
    strategy = mirrored(count)
    with strategy.scope():
        state = rx.variables_from(
            initial(kind), rules={"seen": ON_READ}, aggregation=rx.VariableAggregation.NONE
        )
    carried = wrap(rx.carry(functional(kind, summed)))
    for _ in range(3):
        alone, wanted = step(alone, X)
        same, losses = strategy.run(carried, args=(state, strategy.distribute_batch(X)))
        assert jax.tree.structure(same) == jax.tree.structure(state)
        assert same.params["w"] is state.params["w"]
        state = same
        np.testing.assert_allclose(strategy.reduce("SUM", losses, axis=None), wanted, rtol=1e-5)
    for name, value in alone.params.items():
        np.testing.assert_allclose(state.params[name].numpy(), value, rtol=1e-5, atol=1e-6)
    if kind == "NamedTuple":
        seen = strategy.experimental_local_results(strategy.run(lambda: state.seen.read_value()))
        assert sum(map(int, seen)) == 3 * len(X)


def test_a_carried_state_is_donated_and_traced_once():
    strategy = mirrored(2)
    with strategy.scope():
        state = rx.variables_from(initial("TrainState"))
    step = rx.function(rx.carry(functional("TrainState", summed)))
    batch = strategy.distribute_batch(X)
    args = (state, batch)
    lowered = step.lower_run(strategy, *args)
    num_donated = sum(leaf.donated for leaf in jax.tree.leaves(lowered.args_info))
    assert num_donated == len(jax.tree.leaves(initial("TrainState")))
    state, _ = strategy.run(step, args=args)
    count = step.trace_count
    for _ in range(3):
        state, _ = strategy.run(step, args=(state, batch))
    assert step.trace_count == count


def test_a_state_that_drifts_is_refused(wrap):
    strategy = mirrored(2)
    with strategy.scope():
        state = rx.variables_from(initial("TrainState"))
    step = wrap(rx.carry(functional("TrainState", lambda grads: grads)))
    with pytest.raises(
        ValueError, match=r"variable '.*' is mirrored|different values for variable"
    ):
        strategy.run(step, args=(state, strategy.distribute_batch(X)))
    np.testing.assert_array_equal(state.params["w"].numpy(), np.ones((2, 1)))


def test_a_carried_state_goes_on_from_a_checkpoint(tmp_path):
    strategy = mirrored(2)
    with strategy.scope():
        state, again = (rx.variables_from(initial("TrainState")) for _ in range(2))
    step = rx.function(rx.carry(functional("TrainState", summed)))
    batch = strategy.distribute_batch(X)
    for _ in range(2):
        state, _ = strategy.run(step, args=(state, batch))
    path = rx.Checkpoint(state=state).save(str(tmp_path / "at"))
    rx.Checkpoint(state=again).restore(path)
    for each in (state, again):
        strategy.run(step, args=(each, batch))
    for mine, other in zip(
        jax.tree.leaves(rx.values_of(state)), jax.tree.leaves(rx.values_of(again)), strict=True
    ):
        np.testing.assert_array_equal(mine, other)
    assert int(again.step) == 3


def test_all_that_a_step_returns_beside_its_state_is_returned():
    state = rx.variables_from({"w": 1.0})
    step = rx.carry(lambda state: ({"w": state["w"] + 1}, "loss", [state["w"]], None))
    assert step(state) == (state, "loss", [1.0], None)
    assert step(state)[2:] == ([2.0], None)
    assert rx.carry(lambda state: (state,))(state) == (state,)


def test_a_carried_state_works_without_a_strategy():
    state = rx.variables_from(initial("TrainState"))
    step = rx.carry(functional("TrainState", lambda grads: grads))
    alone, _ = functional("TrainState", lambda grads: grads)(initial("TrainState"), X)
    for run in (step, rx.function(step)):
        again, _ = run(state, X)
        assert again.params["w"] is state.params["w"]
    assert int(state.step) == 2
    assert alone.step == 1


@pytest.mark.parametrize(
    ("state", "result", "message"),
    [
        ({"w": 1.0}, ({"w": 1.0}, 0.0), r"without variables.*replicax.variables_from\(state\)"),
        (None, {"w": 1.0}, "returned dict; a step that carries a state returns a tuple"),
        (None, ({"v": 1.0}, 0.0), "values of another structure than the variables"),
    ],
)
def test_a_step_that_does_not_carry_is_named(state, result, message):
    state = rx.variables_from({"w": 1.0}) if state is None else state
    with pytest.raises(ValueError, match=f"(?s){message}"):
        rx.carry(lambda state: result)(state)
