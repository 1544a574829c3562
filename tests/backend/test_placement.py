"""Buffers: what comes in is copied, what goes out mixes with any other array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.backend import placement
from replicax.backend.mesh import replica_mesh
from replicax.core.errors import BatchError
from replicax.jax_internals.arrays import one_device_arrays


@pytest.fixture(params=[1, 2, 8])
def mesh(request):
    return replica_mesh(tuple(jax.devices()[: request.param]))


def pointers(array):
    return [part.unsafe_buffer_pointer() for part in one_device_arrays(array)]


# -- narrowing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.arange(3), "int32"),
        (np.arange(3, dtype=np.uint64), "uint32"),
        (np.ones(3), "float32"),
        (np.ones(3, np.complex128), "complex64"),
        (np.float64(1.5), "float32"),
        (3, "int32"),
        (2.5, "float32"),
        ([1, 2], "int32"),
        (np.ones(3, np.float16), "float16"),
        (np.ones(3, bool), "bool"),
        (np.array([np.inf, -np.inf, np.nan]), "float32"),
    ],
    ids=repr,
)
def test_host_values_get_the_dtype_that_jax_gives_them(value, dtype):
    narrow = placement.narrowed(value, "x")
    assert narrow.dtype == dtype
    assert jnp.asarray(narrow).dtype == dtype
    np.testing.assert_array_equal(narrow, np.asarray(value))


@pytest.mark.parametrize(
    ("value", "held"),
    [
        (np.array([1, 2**31]), "2147483648"),
        (np.array([-(2**31) - 1, 0]), "-2147483649"),
        (np.array([2**32], np.uint64), "4294967296"),
        (np.array([1e300, 1.0]), "1e\\+300"),
        (np.array([1.0, -1e39]), "1e\\+39"),
        (2**40, "1099511627776"),
        (np.float64(1e200), "1e\\+200"),
        (np.array([1e300 + 0j]), "1e\\+300"),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_refused_with_the_leaf_and_the_setting(value, held):
    with pytest.raises(BatchError, match=rf"the leaf has dtype \w+ and holds {held}, which does"):
        placement.narrowed(value, "the leaf")
    with pytest.raises(ValueError, match=r"jax\.config\.update\('jax_enable_x64', True\)"):
        placement.narrowed(value, "the leaf")


def test_with_64_bit_types_on_nothing_is_narrowed():
    with jax.enable_x64(True):
        assert placement.narrowed(np.array([2**40]), "x").dtype == np.int64
        assert placement.narrowed(np.ones(2), "x").dtype == np.float64


def test_empty_and_limit_values_fit():
    assert placement.narrowed(np.zeros((0, 3)), "x").shape == (0, 3)
    limits = np.array([-(2**31), 2**31 - 1])
    np.testing.assert_array_equal(placement.narrowed(limits, "x"), limits)


def test_jax_arrays_pass_as_they_are():
    array = jnp.ones(2)
    assert placement.narrowed(array, "x") is array


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        (True, True),
        (1.5, True),
        (2j, True),
        (np.ones(2), True),
        (np.float32(1), True),
        (np.zeros(2, jnp.bfloat16), True),
        (np.array(["a"]), False),
        (np.array([None]), False),
        (np.zeros(2, [("a", int)]), False),
        ("text", False),
        (None, False),
        ([1], False),
    ],
    ids=repr,
)
def test_what_counts_as_array_like(value, expected):
    assert placement.is_array_like(value) is expected


def test_jax_arrays_and_keys_are_array_like():
    assert placement.is_array_like(jnp.ones(2))
    assert placement.is_array_like(jax.random.key(0))


# -- copies ------------------------------------------------------------------------------------


def aligned(shape):
    """A host array that device_put would adopt without a copy."""
    return np.asarray(jnp.ones(shape) * 3).copy()


SOURCES = {
    "host array": lambda: aligned(4096),
    "small host array": lambda: np.arange(3, dtype=np.float32),
    "array on the same device": lambda: jnp.ones(4096) * 3,
    "array on another device": lambda: jax.device_put(jnp.ones(4096) * 3, jax.devices()[3]),
    "view of an array": lambda: np.asarray(jnp.ones(4096) * 3),
    "number": lambda: 3.0,
    "half": lambda: jnp.ones(64, jnp.bfloat16),
}


@pytest.mark.parametrize("source", SOURCES)
def test_own_copy_never_shares_a_buffer(source):
    value = SOURCES[source]()
    expected = np.array(value)
    copy = placement.own_copy(value, jax.devices()[0])
    other = placement.own_copy(value, jax.devices()[0])
    assert copy.devices() == {jax.devices()[0]}
    assert copy.dtype == jnp.asarray(value).dtype
    assert copy.unsafe_buffer_pointer() != other.unsafe_buffer_pointer()
    if isinstance(value, np.ndarray):
        assert copy.unsafe_buffer_pointer() != value.ctypes.data
        if value.flags.writeable:
            value[...] = -1
    elif isinstance(value, jax.Array):
        assert copy.unsafe_buffer_pointer() != value.unsafe_buffer_pointer()
        value.delete()
    jax.jit(lambda x: x + 1, donate_argnums=0)(other)
    np.testing.assert_array_equal(np.asarray(copy), expected)


def test_own_copy_of_a_key_is_a_key():
    key = jax.random.key(3)
    copy = placement.own_copy(key, jax.devices()[1])
    assert copy.devices() == {jax.devices()[1]}
    key.delete()
    assert copy.dtype == jax.random.key(3).dtype
    np.testing.assert_array_equal(jax.random.key_data(copy), jax.random.key_data(jax.random.key(3)))


@pytest.mark.parametrize("source", SOURCES)
def test_replicate_gives_each_device_a_buffer_of_its_own(mesh, source):
    value = SOURCES[source]()
    expected = np.array(value)
    array = placement.replicate(value, mesh)
    if mesh.is_default:
        assert not array.committed  # it is where JAX puts everything
    else:
        assert array.sharding == mesh.replicated
    assert len(set(pointers(array))) == mesh.num_replicas
    if isinstance(value, jax.Array):
        assert value.unsafe_buffer_pointer() not in pointers(array)
        value.delete()
    for part, device in zip(one_device_arrays(array), mesh.devices, strict=True):
        assert part.devices() == {device}
        np.testing.assert_array_equal(np.asarray(part), expected)


# -- assembling --------------------------------------------------------------------------------


def test_assemble_puts_each_component_on_its_device(mesh):
    parts = [np.full((2, 3), i, np.float32) for i in range(mesh.num_replicas)]
    array = placement.assemble(parts, mesh)
    assert array.shape == (2 * mesh.num_replicas, 3)
    assert array.sharding == mesh.per_replica
    for i, (shard, device) in enumerate(zip(one_device_arrays(array), mesh.devices, strict=True)):
        assert shard.devices() == {device}
        np.testing.assert_array_equal(shard, np.full((2, 3), i))


def test_assemble_stacks_scalars_and_takes_arrays_from_anywhere(mesh):
    parts = [jax.device_put(jnp.float32(i), jax.devices()[7 - i]) for i in range(mesh.num_replicas)]
    array = placement.assemble(parts, mesh)
    assert array.shape == (mesh.num_replicas,)
    np.testing.assert_array_equal(array, np.arange(mesh.num_replicas))


def test_assemble_copies_host_arrays(mesh):
    parts = [aligned(4096) for _ in range(mesh.num_replicas)]
    array = placement.assemble(parts, mesh)
    for part in parts:
        part[...] = -1
    np.testing.assert_array_equal(array, np.full(4096 * mesh.num_replicas, 3.0))


def test_assemble_takes_empty_components(mesh):
    array = placement.assemble([np.zeros((0, 2), np.float32)] * mesh.num_replicas, mesh)
    assert array.shape == (0, 2)


def test_mirror_makes_one_array_of_equal_ones(mesh):
    copies = [jnp.arange(3.0) for _ in mesh.devices]
    array = placement.mirror(copies, mesh)
    assert array.sharding == mesh.replicated
    np.testing.assert_array_equal(array, [0, 1, 2])


# -- what leaves -------------------------------------------------------------------------------


def test_one_device_gives_an_uncommitted_array_of_the_first_device(mesh):
    array = placement.one_device(placement.replicate(np.arange(3.0, dtype=np.float32), mesh))
    assert not array.committed
    assert array.devices() == {mesh.devices[0]}
    total = array + jax.device_put(jnp.ones(3), jax.devices()[6])
    np.testing.assert_array_equal(total, [1, 2, 3])


def test_an_argument_is_freed_from_the_device_it_is_committed_to(mesh):
    committed = jax.device_put(jnp.ones(3), jax.devices()[5])
    freed = placement.uncommitted_argument(committed)
    assert not freed.committed
    assert freed.devices() == {jax.devices()[5]}
    loose = jnp.ones(3)
    assert placement.uncommitted_argument(loose) is loose
    assert placement.uncommitted_argument(1.5) == 1.5
    spread = placement.replicate(1.0, mesh)
    if mesh.num_replicas > 1:
        assert placement.uncommitted_argument(spread) is spread


def test_an_argument_inside_a_trace_passes_as_it_is():
    seen = []
    jax.jit(lambda x: seen.append(placement.uncommitted_argument(x) is x))(1.0)
    assert seen == [True]
