"""Specs: declared shapes and dtypes."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.value_context import ValueContext


@pytest.mark.parametrize(
    ("declared", "shape", "dtype", "expected"),
    [
        ((2, 3), (2, 3), "float32", True),
        ((2, 3), (2, 4), "float32", False),
        ((None, 3), (7, 3), "float32", True),
        ((None, 3), (0, 3), "float32", True),
        ((None, 3), (7,), "float32", False),
        ((None,), (), "float32", False),
        ((), (), "float32", True),
        (None, (1, 2, 3), "float32", True),
        (None, (), "float32", True),
        ((2,), (2,), "int32", False),
        (None, (2,), "float16", False),
        ([2], (2,), np.float32, True),
    ],
)
def test_compatibility(declared, shape, dtype, expected):
    assert rx.TensorSpec(declared, "float32").is_compatible_with(shape, dtype) is expected


def test_dtypes_may_be_given_as_name_type_or_dtype():
    for dtype in ("bfloat16", jnp.bfloat16, np.dtype(jnp.bfloat16)):
        assert rx.TensorSpec((1,), dtype).dtype == jnp.bfloat16
    assert rx.TensorSpec((1,)).dtype == np.float32


def test_specs_compare_by_shape_and_dtype_not_by_name():
    spec = rx.TensorSpec((2, None), "float32", name="x")
    assert spec == rx.TensorSpec([2, None], np.float32)
    assert hash(spec) == hash(rx.TensorSpec((2, None)))
    assert spec != rx.TensorSpec((2, 3))
    assert spec != rx.TensorSpec((2, None), "int32")
    assert spec != (2, None)
    assert rx.TensorSpec(None) != rx.TensorSpec(())


def test_the_reprs_show_everything():
    spec = rx.TensorSpec((2, None), "int32", name="x")
    assert repr(spec) == "TensorSpec(shape=(2, None), dtype=int32, name='x')"
    pair = rx.PerReplicaSpec(spec, spec)
    assert repr(pair) == f"PerReplicaSpec({spec!r}, {spec!r})"


def test_per_replica_specs_compare_by_components():
    one, two = rx.TensorSpec((1,)), rx.TensorSpec((2,))
    assert rx.PerReplicaSpec(one, two) == rx.PerReplicaSpec(one, two)
    assert hash(rx.PerReplicaSpec(one, two)) == hash(rx.PerReplicaSpec(one, two))
    assert rx.PerReplicaSpec(one, two) != rx.PerReplicaSpec(two, one)
    assert rx.PerReplicaSpec(one) != one
    assert rx.PerReplicaSpec(one, two).components == (one, two)


def test_all_specs_are_type_specs():
    assert isinstance(rx.TensorSpec(()), rx.TypeSpec)
    assert isinstance(rx.PerReplicaSpec(), rx.TypeSpec)


# -- ValueContext ------------------------------------------------------------------------------


def test_a_value_context_says_which_replica_of_how_many():
    context = ValueContext(np.int64(1), 3)
    assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (1, 3)
    assert type(context.replica_id_in_sync_group) is int
    expected = "ValueContext(replica_id_in_sync_group=1, num_replicas_in_sync=3)"
    assert repr(context) == expected
    assert ValueContext().num_replicas_in_sync == 1


@pytest.mark.parametrize(("replica_id", "count"), [(-1, 2), (2, 2), (0, 0), (5, 1)])
def test_an_id_out_of_range_is_refused(replica_id, count):
    with pytest.raises(ValueError, match=rf"is {replica_id}; expected an int in \[0, {count}\)"):
        ValueContext(replica_id, count)


def test_an_id_that_is_no_int_is_refused():
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        ValueContext(0.5, 2)
