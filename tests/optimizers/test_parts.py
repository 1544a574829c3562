"""Functions of whole arrays, run on the parts that replicas have of them."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.backend.mesh import replica_mesh
from replicax.backend.shards import ShardLayout
from replicax.core.names import REPLICA_AXIS
from replicax.optimizers.parts import Split, run_on_parts, whole_of

VALUES = {
    "divides": np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6),
    "filled up": np.linspace(-2, -0.5, 15, dtype=np.float32).reshape(3, 5),
    "fewer than replicas": np.float32([[-3.0, -1.0]]),
}

# What a function needs: nothing, sums over all replicas, or the whole.
FUNCTIONS = {
    "elementwise": (lambda x: jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x * 2.0 - 1.0), {}),
    "a call": (lambda x: jax.nn.relu(jnp.clip(x, -1.0, 1.0)), {}),
    "zeros like it": (lambda x: jnp.zeros_like(x) + x, {}),
    "reciprocal, with zeros in the filling": (lambda x: 1.0 / x, {}),
    "its number of dims": (lambda x: x * x.ndim + x.shape[0], {}),
    "another shape": (lambda x: x.reshape(-1) * 2.0, {}),
    "a scaled norm": (lambda x: x / jnp.sqrt(jnp.sum(x * x)), {"all-reduce": 1}),
    "sum of reciprocals": (lambda x: x * jnp.sum(1.0 / (x + 7.0)), {"all-reduce": 1}),
    "largest": (lambda x: x - jnp.max(x), {"all-reduce": 1}),
    "smallest": (lambda x: x - jnp.min(x), {"all-reduce": 1}),
    "sum of rows": (lambda x: x - x.sum(0, keepdims=True), {"all-gather": 1}),
    "sorted": (lambda x: jnp.sort(x, axis=1), {"all-gather": 1}),
    "product": (lambda x: x @ x.T, {"all-gather": 1}),
    "a condition": (
        lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x * 2.0, lambda: x),
        {"all-gather": 1},
    ),
}


def program(fn, value, *, gathers):
    """``fn`` on the parts of `value` over 4 replicas; gives what each replica has, or the whole."""
    mesh = replica_mesh(tuple(jax.devices()[:4]))
    layout = ShardLayout(value.shape, 4)

    def replica(parts):
        (out,), _ = run_on_parts(lambda values: fn(values[0]), [Split(parts[0], layout)])
        return out.part[None] if isinstance(out, Split) and not gathers else whole_of(out)[None]

    mapped = jax.shard_map(
        replica,
        mesh=mesh.mesh,
        in_specs=PartitionSpec(REPLICA_AXIS),
        out_specs=PartitionSpec(REPLICA_AXIS),
        check_vma=False,
    )
    return jax.jit(mapped), jax.device_put(np.asarray(layout.split(value)), mesh.per_replica)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_result_is_that_of_the_whole(name, value):
    fn, _ = FUNCTIONS[name]
    run, parts = program(fn, VALUES[value], gathers=True)
    expected = np.asarray(fn(jnp.asarray(VALUES[value])))
    for whole in np.split(np.asarray(run(parts)), 4):
        np.testing.assert_allclose(whole[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_travels_but_what_the_function_needs(name):
    fn, collectives = FUNCTIONS[name]
    run, parts = program(fn, VALUES["divides"], gathers=False)
    text = run.lower(parts).compile().as_text()
    found = collections.Counter(re.findall(r"= \S+ (all-gather|all-reduce)(?:-start)?\(", text))
    assert found == collectives
