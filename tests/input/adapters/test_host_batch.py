"""Elements as host arrays, and the errors that name the leaf."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.adapters.host_batch import host_batch, num_examples, part_of_batch, spec_of


def converted(element):
    return host_batch(element, description="a test", advice="Batch it.")


def test_an_array_of_numpy_is_taken_as_it_is():
    array = np.arange(3)
    assert converted({"x": array})["x"] is array


@pytest.mark.parametrize(
    "leaf", [[1, 2], [[1.5], [2.5]], jnp.arange(3), np.arange(3).view(np.matrix), memoryview(b"ab")]
)
def test_other_arrays_become_numpy_arrays(leaf):
    array = converted((leaf,))[0]
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, np.asarray(leaf))


def test_lists_of_arrays_and_none_are_structure():
    batch = converted([np.arange(2), {"a": np.arange(2), "b": None}])
    assert jax.tree_util.tree_structure(batch) == jax.tree_util.tree_structure(
        [0, {"a": 0, "b": None}]
    )


@pytest.mark.parametrize(
    "strings", [["a", "bc"], np.array(["a", "bc"]), np.array(["a", b"b"], dtype=object)]
)
def test_strings_stay_strings(strings):
    assert converted(strings).dtype.kind in "UO"


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (None, r"a test gave None instead of a batch\. Batch it"),
        ({"x": 3}, r"leaf \['x'\] of a test is a scalar, 3.*Batch it"),
        ({"x": np.float32(3)}, r"leaf \['x'\] of a test is a scalar"),
        ("text", r"the element of a test is a scalar, 'text'"),
        (((), {}), r"has no arrays in it"),
        ({"x": [[1], [1, 2]]}, r"leaf \['x'\] of a test is a list that NumPy cannot hold.*Pad"),
        (
            {"x": np.array([np.ones(1), np.ones(2)], dtype=object)},
            r"leaf \['x'\] of a test is an array of objects .*ndarray\): ragged.*Pad",
        ),
        ({"x": object()}, r"leaf \['x'\] of a test is an array of objects .*object\)"),
        ({"x": jax.random.key(0)}, r"leaf \['x'\] of a test is a PRNGKeyArray that NumPy cannot"),
    ],
)
def test_what_is_no_batch_is_refused_by_name(element, message):
    with pytest.raises(BatchError, match=message):
        converted(element)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("tensorflow.python.ops.ragged", "RaggedTensor", r"leaf \['x'\] .*is ragged.*Pad it"),
        ("tensorflow.python.framework", "SparseTensor", r"leaf \['x'\] .*is sparse.*dense"),
        ("scipy.sparse._csr", "csr_array", r"leaf \['x'\] .*is sparse.*dense"),
        ("jax.experimental.sparse.bcoo", "BCOO", r"leaf \['x'\] .*is sparse.*dense"),
    ],
)
def test_ragged_and_sparse_leaves_are_known_by_their_class(module, name, message):
    leaf = type(name, (), {"__module__": module})()
    with pytest.raises(BatchError, match=message):
        converted({"x": leaf})


def test_leaves_of_different_sizes_are_listed():
    with pytest.raises(BatchError, match=r"\['a'\]: 2, \['b'\]: 3"):
        num_examples({"a": np.zeros(2), "b": np.zeros(3)}, description="a test")


def test_a_part_of_a_batch_tells_the_size_of_the_whole():
    part = part_of_batch({"a": np.arange(5)}, lambda size: slice(3, size), description="a test")
    assert (part.batch["a"].tolist(), part.global_size) == ([3, 4], 5)


def test_a_spec_has_no_width_for_strings():
    spec = spec_of({"s": np.array(["a", "bc"]), "x": np.zeros((2, 3), "f4")}, num_examples=None)
    assert spec == {"s": TensorSpec((None,), "U"), "x": TensorSpec((None, 3), "float32")}
