"""What a walk over a trace finds: collectives with counts, lines and variables, and callbacks."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import replicax as rx
from replicax.costs.program import inspect_step
from replicax.costs.traced import read_trace
from tests.contracts.strategies import mirrored

N = 4


def all_reduce(value):
    return rx.get_replica_context().all_reduce("SUM", value)


def found_in(replica_fn, *rows, strategy=None):
    strategy = mirrored(N) if strategy is None else strategy
    batch = strategy.distribute_batch(list(rows) or [np.ones((N, 3), np.float32)])
    return inspect_step(replica_fn, batch, strategy=strategy, compiles=False)


def test_a_collective_knows_its_line_and_its_size():
    def step(x):
        return rx.get_replica_context().all_reduce("SUM", x)

    (found,) = found_in(step).collectives
    assert (found.kind, found.operand_bytes, found.group_size) == ("all-reduce", (12,), N)
    assert found.dtypes == ("float32",)
    assert found.line == f"{__file__}:{inspect.getsourcelines(step)[1] + 1}"


def test_a_scan_counts_its_rounds_and_scans_in_scans_multiply():
    def step(x):
        def inner(carry, _):
            return all_reduce(carry) * 0.5, None

        def outer(carry, _):
            return lax.scan(inner, carry, length=3)[0], None

        return lax.scan(outer, x, length=5)[0]

    (found,) = found_in(step).collectives
    assert found.count == found.times == 15


def test_what_is_in_a_while_loop_is_executed_nobody_knows_how_often():
    def step(x):
        return lax.while_loop(
            lambda pair: pair[0] < 7, lambda pair: (pair[0] + 1, all_reduce(pair[1])), (0, x)
        )[1]

    found = found_in(step)
    assert [one.count for one in found.collectives] == [None]
    assert found.collectives[0].times == 1
    assert found.arithmetic.is_at_least


def test_what_is_in_a_branch_may_be_left_out():
    strategy = mirrored(N)
    with strategy.scope():
        flag = rx.Variable(1.0, name="flag")

    def step(x):
        return lax.cond(flag > 0, all_reduce, lambda x: x, x)

    (found,) = found_in(step, strategy=strategy).collectives
    assert found.in_branch
    assert found.count == 1


def test_one_body_in_two_places_counts_twice():
    @jax.jit
    def normed(x):
        return x / all_reduce(x)

    found = found_in(lambda x: normed(normed(x)))
    assert len(found.collectives) == 2


def test_devices_without_company_send_nothing():
    assert found_in(all_reduce, np.ones((2, 3), np.float32), strategy=mirrored(1)).collectives == ()


class Model:
    """Two variables and their optimizer."""

    def __init__(self, strategy, transformation):
        with strategy.scope():
            self.w = rx.Variable(np.ones((3, 2), np.float32), name="w")
            self.b = rx.Variable(np.zeros(20_000, np.float32), name="b")
            self.optimizer = rx.Optimizer(transformation)
        self.optimizer.build([self.w, self.b])

    def step(self, x):
        gradients = rx.grad(lambda: ((x @ self.w).sum() + self.b.sum()) ** 2, [self.w, self.b])
        self.optimizer.apply_gradients([(gradients, [self.w, self.b])])


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_sum_of_a_gradient_serves_its_variable_also_when_a_norm_joins_all(clip):
    strategy = mirrored(N)
    adam = optax.adam(0.1)
    chain = adam if clip is None else optax.chain(optax.clip_by_global_norm(clip), adam)
    found = found_in(Model(strategy, chain).step, strategy=strategy)
    assert {one.num_bytes: one.variables for one in found.collectives} == {
        3 * 2 * 4: ("w",),
        20_000 * 4: ("b",),
    }


def test_a_gather_of_parts_serves_the_variable_whose_parts_they_are():
    strategy = mirrored(N, sharding=rx.experimental.Sharding(stage=3))
    found = found_in(Model(strategy, optax.sgd(0.1)).step, strategy=strategy)
    gathers = [one for one in found.collectives if one.kind == "all-gather"]
    assert {one.variables: one.num_bytes for one in gathers} == {("w",): 8, ("b",): 20_000}


def test_small_gradients_in_one_collective_serve_all_of_their_variables():
    strategy = mirrored(N)
    with strategy.scope():
        many = [rx.Variable(np.ones(3, np.float32), name=f"v{i}") for i in range(5)]

    def replica_step(x):
        return all_reduce(rx.grad(lambda: sum((x * v).sum() for v in many), many))

    @rx.function
    def step(x):
        for variable, gradient in zip(many, strategy.run(replica_step, args=(x,)), strict=True):
            variable.assign_sub(gradient)

    batch = strategy.distribute_batch(np.ones((N, 3), np.float32))
    (found,) = inspect_step(step, (batch,), compiles=False).collectives
    assert found.variables == ("v0", "v1", "v2", "v3", "v4")


def test_a_variable_that_a_loop_writes_is_served_by_the_collective_in_the_loop():
    strategy = mirrored(N)
    with strategy.scope():
        w = rx.Variable(np.ones(3, np.float32), name="w")

    def replica_step(x):
        return all_reduce(rx.grad(lambda: (x * w).sum(), w))

    @rx.function
    def steps(x):
        def body(carry, _):
            w.assign_sub(strategy.run(replica_step, args=(x,)))
            return carry, None

        lax.scan(body, None, length=6)

    batch = strategy.distribute_batch(np.ones((N, 3), np.float32))
    (found,) = inspect_step(steps, (batch,), compiles=False).collectives
    assert (found.count, found.variables) == (6, ("w",))


def test_host_callbacks_are_found_with_sizes_counts_and_lines():
    def step(x):
        def body(carry, _):
            jax.debug.callback(lambda value: None, carry)
            return carry, None

        lax.scan(body, x[0, 0], length=4)
        return jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct((3,), x.dtype), x[0])

    first = inspect.getsourcelines(step)[1]
    debug, pure = found_in(step).host_calls
    assert (debug.kind, debug.count, debug.num_bytes_to_host) == ("debug_callback", 4, 4)
    assert (pure.kind, pure.count) == ("pure_callback", 1)
    assert (pure.num_bytes_to_host, pure.num_bytes_from_host) == (12, 12)
    assert [debug.line, pure.line] == [f"{__file__}:{first + 2}", f"{__file__}:{first + 6}"]


def test_a_trace_for_devices_that_do_not_exist_can_be_read():
    mesh = jax.sharding.AbstractMesh((1024,), ("replica",))
    spec = jax.sharding.PartitionSpec
    total = jax.shard_map(
        lambda x: lax.psum(x, "replica"), mesh=mesh, in_specs=spec("replica"), out_specs=spec()
    )
    jaxpr = jax.make_jaxpr(total)(jax.ShapeDtypeStruct((2048, 3), jnp.float32))
    (found,) = read_trace(jaxpr).collectives
    assert (found.num_bytes, found.group_size) == (24, 1024)
