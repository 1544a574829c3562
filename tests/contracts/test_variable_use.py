"""A variable in ordinary code: operators, jnp, jit, vmap, conversion, assignment, repr."""

import copy
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend.devices import device_name
from tests.contracts.strategies import STRATEGIES, mirrored

ON_READ = rx.VariableSynchronization.ON_READ
FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA
SUM = rx.VariableAggregation.SUM

KINDS = {
    "plain": lambda value, **options: rx.Variable(value, **options),
    "mirrored": lambda value, **options: _created(mirrored(2), value, **options),
    "mirrored on one": lambda value, **options: _created(mirrored(1), value, **options),
    "on another device": lambda value, **options: _created(
        rx.OneDeviceStrategy("CPU:3"), value, **options
    ),
    "sync on read": lambda value, **options: _created(
        mirrored(2), value, synchronization=ON_READ, aggregation=FIRST, **options
    ),
}


def _created(strategy, value, **options):
    with strategy.scope():
        return rx.Variable(value, **options)


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
)
INTEGER = ("and_", "or_", "xor", "lshift", "rshift", "add", "mod", "eq")


def test_operators_with_floats(make):
    v, array = make([1.5, 2.0, 3.0]), jnp.asarray([1.5, 2.0, 3.0])
    for name in BINARY:
        fn = getattr(operator, name)
        for other in (2.0, 2, jnp.asarray([2.0, 1.0, 3.0]), np.float32(2), make([2.0, 2.0, 3.0])):
            plain = other.value if isinstance(other, rx.Variable) else other
            np.testing.assert_allclose(fn(v, other), fn(array, plain))
            np.testing.assert_allclose(fn(other, v), fn(plain, array))
    for fn in (operator.neg, operator.pos, operator.abs):
        np.testing.assert_allclose(fn(v), fn(array))
    np.testing.assert_allclose(v @ v, array @ array)
    np.testing.assert_allclose(v @ jnp.ones(3), 6.5)
    np.testing.assert_allclose(np.ones(3, np.float32) @ v, 6.5)
    np.testing.assert_allclose(round(make(2.345), 1), 2.3, rtol=1e-6)


def test_operators_with_integers(make):
    v, array = make([1, 6, 3]), jnp.asarray([1, 6, 3])
    for name in INTEGER:
        fn = getattr(operator, name)
        np.testing.assert_array_equal(fn(v, 2), fn(array, 2))
        np.testing.assert_array_equal(fn(2, v), fn(2, array))
    np.testing.assert_array_equal(~v, ~array)
    np.testing.assert_array_equal(divmod(v, 2)[0], array // 2)


def test_conversions_and_indexing(make):
    v = make([[1.0, 2.0], [3.0, 4.0]])
    assert (v.shape, v.ndim, v.size, len(v)) == ((2, 2), 2, 4, 2)
    assert v.dtype == np.float32
    assert float(v[1, 0]) == 3
    np.testing.assert_array_equal(v[:, -1], [2, 4])
    np.testing.assert_array_equal(v[v > 2], [3, 4])
    np.testing.assert_array_equal([row.sum() for row in v], [3, 7])
    np.testing.assert_array_equal(v.T, [[1, 3], [2, 4]])
    np.testing.assert_array_equal(v.at[0, 0].set(9.0), [[9, 2], [3, 4]])
    np.testing.assert_array_equal(np.asarray(v, np.int32), [[1, 2], [3, 4]])
    assert float(v.sum()) == 10
    one = make(3)
    assert (int(one), float(one), complex(one), bool(one)) == (3, 3.0, 3 + 0j, True)
    assert [10, 20, 30, 40][one] == 40
    with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
        v.no_such_thing  # noqa: B018


def test_numpy_is_a_copy(make):
    v = make([1.0, 2.0])
    host = v.numpy()
    assert type(host) is np.ndarray
    host[0] = 100
    np.testing.assert_array_equal(v.numpy(), [1, 2])
    np.testing.assert_array_equal(np.asarray(v), [1, 2])


def test_hashing_goes_by_identity(make):
    v, w = make(1.0), make(1.0)
    assert {v: "v", w: "w"}[v] == "v"
    assert len({v, w, v}) == 2


JAX_CALLS = {
    "jnp.sum": lambda v: jnp.sum(v),
    "jnp.sin": lambda v: jnp.sin(v),
    "jnp.where": lambda v: jnp.where(v > 1, v, 0),
    "jnp.stack": lambda v: jnp.stack([v, v]),
    "jnp.einsum": lambda v: jnp.einsum("i,i->", v, v),
    "jnp.dot": lambda v: jnp.dot(v, v),
    "jnp.asarray": lambda v: jnp.asarray(v),
    "jax.nn.relu": lambda v: jax.nn.relu(v - 2),
    "jax.nn.softmax": lambda v: jax.nn.softmax(v),
    "jax.jit": lambda v: jax.jit(lambda x: x * 2)(v),
    "jax.vmap": lambda v: jax.vmap(lambda x: x * 2)(v),
    "jax.grad": lambda v: jax.grad(lambda x: (x * x).sum())(v),
    "jax.grad of a list": lambda v: jax.grad(lambda xs: (xs[0] * xs[1]).sum())([v, v])[0],
    "lax.scan over it": lambda v: jax.lax.scan(lambda c, x: (c + x, c), 0.0, v)[1],
    "jax.device_put": lambda v: jax.device_put(v),
    "jax.tree.map": lambda v: jax.tree.map(lambda x: x + 1, {"v": v})["v"],
    "numpy": lambda v: np.sum(v),
}


@pytest.mark.parametrize("call", JAX_CALLS)
def test_direct_use_in_jax(make, call):
    v = make([1.0, 2.0, 3.0])
    fn = JAX_CALLS[call]
    np.testing.assert_allclose(fn(v), fn(jnp.asarray([1.0, 2.0, 3.0])), rtol=1e-6)


@pytest.mark.parametrize("call", JAX_CALLS)
def test_direct_use_in_jax_in_a_compiled_run(two, call):
    if call == "numpy":  # a host function cannot be part of a program
        return
    with two.scope():
        v = rx.Variable([1.0, 2.0, 3.0])
    fn = JAX_CALLS[call]
    result = two.run(rx.function(lambda: fn(v)))
    for value in two.experimental_local_results(result):
        np.testing.assert_allclose(value, fn(jnp.asarray([1.0, 2.0, 3.0])), rtol=1e-6)


def test_a_jitted_argument_follows_the_variable(make):
    v = make(1.0)
    double = jax.jit(lambda x: x * 2)
    assert float(double(v)) == 2
    v.assign(5.0)
    assert float(double(v)) == 10


@pytest.mark.own_results
def test_what_leaves_mixes_with_arrays_of_other_devices(strategy):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0])
    elsewhere = jax.device_put(jnp.ones(2), jax.local_devices()[-1])
    np.testing.assert_array_equal(v.value + elsewhere, [2, 3])
    np.testing.assert_array_equal(v + elsewhere, [2, 3])
    total = sum(strategy.experimental_local_results(v))
    np.testing.assert_array_equal(total + elsewhere, np.asarray([1, 2]) * len(v.devices()) + 1)


def test_assign_casts_python_numbers_and_what_fits(make):
    v = make(1.0)
    for value in (2, 2.0, True, np.int8(2), np.float32(2), jnp.bfloat16(2), jnp.asarray(2.0)):
        v.assign(value)
        assert v.value.dtype == np.float32
        assert not v.value.weak_type
        assert float(v) == float(value)
    w = make(1)
    for value in (2, True, np.int16(2), jnp.asarray(2)):
        w.assign(value)
        assert w.value.dtype == np.int32
    half = make(1.0, dtype=jnp.bfloat16)
    half.assign(0.5)
    assert half.value.dtype == jnp.bfloat16
    pair = make([1.0, 2.0])
    pair.assign([3, 4])
    pair.assign((jnp.float32(5), 6.0))
    np.testing.assert_array_equal(pair.numpy(), [5, 6])


REFUSED = {
    "another shape": ([1.0, 2.0], [1.0, 2.0, 3.0], r"shape \(3,\), but variable 'w' has shape"),
    "a scalar for a vector": ([1.0, 2.0], 1.0, r"shape \(\), but variable 'w' has shape \(2,\)"),
    "a float for an int": (1, 1.5, "cannot hold exactly"),
    "a whole float for an int": (1, 2.0, "cannot hold exactly"),
    "an int that is too large": (1, 2**31, "cannot hold exactly"),
    "a negative for unsigned": (np.uint8(1), -1, "cannot hold exactly"),
    "a complex for a float": (1.0, 1j, "cannot hold exactly"),
    "a float array for an int": ([1, 2], jnp.ones(2), "dtype float32.*'w' of dtype int32"),
    "a float32 for a bfloat16": (jnp.bfloat16(1), jnp.float32(1), "dtype float32.*without loss"),
    "an int array for a bool": (True, jnp.int32(1), "dtype int32.*'w' of dtype bool"),
    "a string": (1.0, "one", "'w' got 'one', which is no array or number"),
    "None": (1.0, None, "'w' got None, which is no array or number"),
    "a random key": (1.0, jax.random.key, "without loss"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_assign_refuses_other_shapes_and_lossy_dtypes(make, case):
    initial, value, match = REFUSED[case]
    v = make(initial, name="w")
    before = v.numpy()
    value = value(0) if callable(value) else value
    with pytest.raises(ValueError, match=match):
        v.assign(value)
    np.testing.assert_array_equal(v.numpy(), before)


def test_assign_refuses_the_same_inside_run(many, execute):
    with many.scope():
        v = rx.Variable([1, 2], name="w", aggregation=SUM)
    with pytest.raises(ValueError, match=r"shape \(3,\), but variable 'w' has shape \(2,\)"):
        execute(many, lambda: v.assign(jnp.zeros(3, jnp.int32)))
    with pytest.raises(ValueError, match=r"dtype float32.*'w' of dtype int32"):
        execute(many, lambda: v.assign_add(jnp.ones(2)))
    execute(many, lambda: v.assign_add([1, 1]))
    np.testing.assert_array_equal(v.numpy(), np.asarray([1, 2]) + many.num_replicas_in_sync)


def test_the_type_stays_strong_through_weak_assignments(strategy, execute):
    with strategy.scope():
        v = rx.Variable(jnp.float16(1), aggregation=SUM)

    def step(x):
        v.assign(v * 2 + x)
        v.assign_add(1)

    run = execute.prepare(strategy, step)
    for _ in range(3):
        run(1.0)
    assert v.value.dtype == jnp.float16
    assert not v.value.weak_type


REPRS = {
    "default": "<rx.Variable 'w' shape=(2,) dtype=float32, numpy=[1., 2.]>",
    "mirrored_2": (
        "MirroredVariable:{\n"
        "  0: <rx.Variable 'w' shape=(2,) dtype=float32, numpy=[1., 2.]>,\n"
        "  1: <rx.Variable 'w' shape=(2,) dtype=float32, numpy=[1., 2.]>\n"
        "}"
    ),
}


@pytest.mark.parametrize("name", REPRS)
def test_repr_shows_every_copy(name):
    v = _created(STRATEGIES[name](), [1.0, 2.0], name="w")
    assert repr(v) == REPRS[name]


def test_repr_of_sync_on_read_shows_the_copies():
    strategy = mirrored(2)
    v = _created(strategy, 0, synchronization=ON_READ, aggregation=SUM, name="n")
    strategy.run(lambda: v.assign(rx.get_replica_context().replica_id_in_sync_group + 1))
    assert repr(v) == (
        "SyncOnReadVariable:{\n"
        "  0: <rx.Variable 'n' shape=() dtype=int32, numpy=1>,\n"
        "  1: <rx.Variable 'n' shape=() dtype=int32, numpy=2>\n"
        "}"
    )


def test_repr_works_in_every_context(strategy, execute):
    with strategy.scope():
        v = rx.Variable(1.0, name="w")
    texts = []
    execute(strategy, lambda: texts.append(repr(v)))
    assert all("'w' shape=() dtype=float32" in text for text in texts)


def test_devices(many):
    v = _created(many, 1.0)
    assert {device_name(d) for d in v.devices()} == set(many.extended.parameter_devices)
    assert rx.Variable(1.0).devices() == {jax.local_devices()[0]}


def test_copying_and_pickling_are_refused(make):
    v = make(1.0, name="w")
    with pytest.raises(TypeError, match="'w' cannot be pickled"):
        pickle.dumps(v)
    with pytest.raises(TypeError, match="'w' cannot be copied"):
        copy.deepcopy(v)
