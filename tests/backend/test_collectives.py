"""Sums and means over all replicas, and what of the packing reaches the compiled program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.backend import collectives
from replicax.backend.collectives import PACKED_BELOW, Reduction
from replicax.backend.mesh import replica_mesh
from replicax.core.enums import ReduceOp

NUM_REPLICAS = 4


@pytest.fixture
def mesh():
    return replica_mesh(tuple(jax.devices()[:NUM_REPLICAS]))


def program(mesh, fn):
    return jax.jit(collectives.per_replica_map(fn, mesh, replicated_out=True))


def all_reduced(mesh, op, *values, reduction=collectives.ALL_REDUCE):
    """The result of reducing ``value + replica id`` for each value."""

    def replica(ids):
        mine = [value + ids[0].astype(value.dtype) for value in values]
        return collectives.all_reduce(op, mine, NUM_REPLICAS, reduction)

    return program(mesh, replica)(jnp.arange(NUM_REPLICAS))


def operands_of_all_reduce(mesh, values, reduction):
    """The shapes that the all-reduces of the compiled program add, as HLO writes them."""

    def replica(ids):
        mine = [value + ids[0].astype(value.dtype) for value in values]
        return collectives.all_reduce(ReduceOp.SUM, mine, NUM_REPLICAS, reduction)

    text = program(mesh, replica).lower(jnp.arange(NUM_REPLICAS)).compile().as_text()
    lines = [line for line in text.splitlines() if re.search(r"= .* all-reduce(-start)?\(", line)]
    return sorted(
        shape
        for line in lines
        for shape in re.findall(r"\w+\[[\d,]*\]", re.split(r" all-reduce(-start)?\(", line)[0])
    )


# -- values ------------------------------------------------------------------------------------

REDUCTIONS = {
    "default": Reduction(),
    "unpacked": Reduction(num_packs=0),
    "three packs": Reduction(num_packs=3),
    "on replica 2": Reduction(on_replica=2),
    "on replica 0 unpacked": Reduction(on_replica=0, num_packs=0),
    "accumulate": Reduction(on_replica=1, accumulate=lambda parts: sum(parts[1:], parts[0])),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_reduction_adds_the_same(mesh, name):
    values = [
        jnp.zeros(()),
        jnp.ones((2, 3)),
        jnp.arange(4),
        jnp.ones(5, jnp.bfloat16),
        jnp.zeros((0, 2)),
        jnp.ones(PACKED_BELOW),
        jnp.ones((3, 1)) * 1j,
    ]
    ids = sum(range(NUM_REPLICAS))
    results = all_reduced(mesh, ReduceOp.SUM, *values, reduction=REDUCTIONS[name])
    for value, result in zip(values, results, strict=True):
        assert result.dtype == value.dtype
        assert result.shape == value.shape
        np.testing.assert_allclose(
            np.asarray(result, np.complex64),
            np.asarray(value, np.complex64) * NUM_REPLICAS + ids,
        )


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("int32", "float32"),
        ("uint8", "float32"),
        ("bool", "float32"),
        ("complex64", "complex64"),
    ],
)
def test_a_mean_of_integers_is_a_float(mesh, dtype, expected):
    def replica(ids):
        value = (ids[0] > 0) if dtype == "bool" else ids[0].astype(dtype)
        return collectives.all_reduce(ReduceOp.MEAN, [value], NUM_REPLICAS)

    (result,) = program(mesh, replica)(jnp.arange(NUM_REPLICAS))
    assert result.dtype == expected
    assert complex(result) == (0.75 if dtype == "bool" else 1.5)
    assert collectives.as_mean_dtype(jnp.dtype(dtype)) == expected


def test_a_sum_of_bools_counts(mesh):
    def replica(ids):
        return collectives.all_reduce(ReduceOp.SUM, [ids[0] > 0], NUM_REPLICAS)

    (result,) = program(mesh, replica)(jnp.arange(NUM_REPLICAS))
    assert result.dtype == jnp.int32
    assert int(result) == 3


# -- packing -----------------------------------------------------------------------------------

SMALL = [jnp.zeros(n) for n in (2, 3, 4, 5, 6)]


@pytest.mark.parametrize(
    ("num_packs", "operands"),
    [
        (0, ["f32[2]", "f32[3]", "f32[4]", "f32[5]", "f32[6]"]),
        (1, ["f32[20]"]),
        (3, ["f32[5]", "f32[6]", "f32[9]"]),
        (9, ["f32[2]", "f32[3]", "f32[4]", "f32[5]", "f32[6]"]),
    ],
)
def test_num_packs_is_the_number_of_operands_in_the_compiled_program(mesh, num_packs, operands):
    assert operands_of_all_reduce(mesh, SMALL, Reduction(num_packs=num_packs)) == operands


def test_each_dtype_has_packs_of_its_own(mesh):
    values = [jnp.zeros(2), jnp.zeros(3, jnp.int32), jnp.zeros(4), jnp.zeros(5, jnp.int32)]
    assert operands_of_all_reduce(mesh, values, Reduction()) == ["f32[6]", "s32[8]"]


def test_large_values_travel_alone_and_unchanged(mesh):
    values = [jnp.zeros(2), jnp.zeros((PACKED_BELOW // 2, 2)), jnp.zeros(3)]
    expected = sorted([f"f32[{PACKED_BELOW // 2},2]", "f32[5]"])
    assert operands_of_all_reduce(mesh, values, Reduction()) == expected
    just_below = [jnp.zeros(PACKED_BELOW - 1), jnp.zeros(1)]
    assert operands_of_all_reduce(mesh, just_below, Reduction()) == [f"f32[{PACKED_BELOW}]"]


def test_a_single_value_is_not_reshaped(mesh):
    assert operands_of_all_reduce(mesh, [jnp.zeros((2, 3))], Reduction()) == ["f32[2,3]"]


# -- on one replica ----------------------------------------------------------------------------


def test_a_reduction_on_one_replica_gathers_and_adds_there(mesh):
    def replica(ids):
        return collectives.all_reduce(
            ReduceOp.SUM, [ids[0] * 1.0], NUM_REPLICAS, Reduction(on_replica=2)
        )

    text = program(mesh, replica).lower(jnp.arange(NUM_REPLICAS)).compile().as_text()
    assert "all-gather" in text
    assert "conditional" in text or "select" in text


def test_accumulate_gets_the_values_of_all_replicas_in_order(mesh):
    def last_minus_first(parts):
        assert len(parts) == NUM_REPLICAS
        return parts[-1] * 10 - parts[0]

    reduction = Reduction(on_replica=1, accumulate=last_minus_first)
    (result,) = all_reduced(mesh, ReduceOp.SUM, jnp.ones(2), reduction=reduction)
    np.testing.assert_array_equal(result, [39.0, 39.0])


def test_every_replica_gets_the_sum_of_the_one(mesh):
    def replica(ids):
        (total,) = collectives.all_reduce(
            ReduceOp.SUM, [ids * 1.0], NUM_REPLICAS, Reduction(on_replica=3)
        )
        return total + ids * 100

    mapped = jax.jit(collectives.per_replica_map(replica, mesh, replicated_out=False))
    np.testing.assert_array_equal(mapped(jnp.arange(NUM_REPLICAS)), [6, 106, 206, 306])


# -- from the first replica --------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        lambda i: i + 5.0,
        lambda i: (i + 5).astype(jnp.uint8),
        lambda i: i == 0,
        lambda i: jnp.where(i == 0, 1.0, jnp.nan),
        lambda i: jnp.where(i == 0, jnp.inf, 1.0),
        lambda i: (i + 5.0).astype(jnp.bfloat16),
    ],
    ids=["float", "uint8", "bool", "nan elsewhere", "inf", "bfloat16"],
)
def test_from_first_replica_gives_replica_0s_value_to_all(mesh, value):
    def replica(ids):
        return collectives.from_first_replica(value(ids))

    mapped = jax.jit(collectives.per_replica_map(replica, mesh, replicated_out=False))
    result = mapped(jnp.arange(NUM_REPLICAS))
    expected = np.asarray(value(jnp.zeros((), jnp.int32)))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(result), np.full(NUM_REPLICAS, expected))


def test_from_first_replica_works_for_random_keys(mesh):
    def replica(ids):
        key = collectives.from_first_replica(jax.random.key(ids[0]))
        return jax.random.key_data(key)[None]

    mapped = jax.jit(collectives.per_replica_map(replica, mesh, replicated_out=False))
    data = mapped(jnp.arange(NUM_REPLICAS))
    np.testing.assert_array_equal(data, [jax.random.key_data(jax.random.key(0))] * NUM_REPLICAS)


def test_the_gradient_of_a_packed_sum_is_the_sum_of_the_gradients(mesh):
    def replica(ids):
        x = ids[0] * 1.0

        def loss(x):
            a, b = collectives.all_reduce(ReduceOp.SUM, [x, x * 2.0], NUM_REPLICAS)
            return (a + b) * (ids[0] + 1)

        return jax.grad(loss)(x)[None]

    mapped = jax.jit(collectives.per_replica_map(replica, mesh, replicated_out=False))
    np.testing.assert_array_equal(mapped(jnp.arange(NUM_REPLICAS)), [30.0] * NUM_REPLICAS)


# -- products ----------------------------------------------------------------------------------


def summed_gradient(mesh, shape):
    """The sum over the replicas of the gradient of a matrix, and the shape that is added."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_REPLICAS, *shape, 96)).astype(np.float32)
    w = rng.normal(size=(96, 192)).astype(np.float32)

    def replica(x):
        gradient = jax.grad(lambda w: jnp.sum(jnp.sin(x[0] @ w)))(w)
        return collectives.all_reduce(ReduceOp.SUM, [gradient], NUM_REPLICAS)[0]

    mapped = program(mesh, replica)
    whole = jax.grad(lambda w: jnp.sum(jnp.sin(x.reshape(-1, 96) @ w)))(w)
    np.testing.assert_allclose(mapped(x), whole, rtol=1e-4, atol=1e-3)
    (added,) = re.findall(r"(f32\[[\d,]*\])\S* all-reduce\(", mapped.lower(x).compile().as_text())
    return added


def test_a_product_over_several_dims_is_transposed_after_its_sum(mesh):
    assert summed_gradient(mesh, (4, 128)) == "f32[192,96]"


@pytest.mark.parametrize("shape", [(512,), (4, 16)])
def test_a_product_that_would_not_gain_is_transposed_before_its_sum(mesh, shape):
    assert summed_gradient(mesh, shape) == "f32[96,192]"
