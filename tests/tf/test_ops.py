"""The thin operations: values, strong types, placement, and what they refuse."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax.tf as tf
from tests.tf.comparing import assert_tensor

# call -> value, dtype
RESULTS = {
    "a Python float is float32": (lambda: tf.constant(1.5), 1.5, "float32"),
    "a Python int is int32": (lambda: tf.constant(3), 3, "int32"),
    "a bool is bool": (lambda: tf.constant([True, False]), [True, False], "bool"),
    "a complex is complex64": (lambda: tf.constant(1j), 1j, "complex64"),
    "a list of both is float32": (lambda: tf.constant([1, 2.5]), [1.0, 2.5], "float32"),
    "an empty list is float32": (lambda: tf.constant([]), [], "float32"),
    "an empty list as int32": (lambda: tf.constant([], tf.int32), [], "int32"),
    "ints as float32": (lambda: tf.constant([1, 2], tf.float32), [1.0, 2.0], "float32"),
    "a large int as float32": (lambda: tf.constant(2**40, tf.float32), 2.0**40, "float32"),
    "a small int as uint8": (lambda: tf.constant(255, tf.uint8), 255, "uint8"),
    "bfloat16": (lambda: tf.constant(1.5, tf.bfloat16), 1.5, "bfloat16"),
    "int64 follows x64": (lambda: tf.constant(7, tf.int64), 7, "int32"),
    "a float64 array": (lambda: tf.constant(np.array([1.0, 2.0])), [1.0, 2.0], "float32"),
    "a float64 scalar": (lambda: tf.constant(np.float64(3.0)), 3.0, "float32"),
    "a filled shape": (lambda: tf.constant(2, shape=(2, 2)), [[2, 2], [2, 2]], "int32"),
    "a new shape": (lambda: tf.constant([1, 2, 3, 4], shape=[2, 2]), [[1, 2], [3, 4]], "int32"),
    "a list of variables": (
        lambda: tf.constant([tf.Variable(1.0), tf.Variable(2.0)]),
        [1.0, 2.0],
        "float32",
    ),
    "a variable": (lambda: tf.convert_to_tensor(tf.Variable([1.0])), [1.0], "float32"),
    "widening": (lambda: tf.convert_to_tensor(jnp.float16(1), tf.float32), 1.0, "float32"),
    "inf": (lambda: tf.constant(float("inf")), np.inf, "float32"),
    "identity": (lambda: tf.identity([1.0]), [1.0], "float32"),
    "add": (lambda: tf.add(tf.constant([1.0]), 2), [3.0], "float32"),
    "add of numbers": (lambda: tf.add(1, 2), 3, "int32"),
    "add, the number first": (lambda: tf.add(2, tf.Variable(1.5)), 3.5, "float32"),
    "add keeps int8": (lambda: tf.add(tf.constant(1, tf.int8), 1), 2, "int8"),
    "subtract": (lambda: tf.subtract([3.0], [1.0]), [2.0], "float32"),
    "multiply": (lambda: tf.multiply(tf.constant([2, 3]), 2), [4, 6], "int32"),
    "divide": (lambda: tf.divide(3, 2), 1.5, "float32"),
    "square": (lambda: tf.square(-3.0), 9.0, "float32"),
    "matmul": (lambda: tf.matmul([[1.0, 2.0]], [[3.0], [4.0]]), [[11.0]], "float32"),
    "matmul, b transposed": (
        lambda: tf.matmul([[1.0, 2.0]], [[3.0, 4.0]], transpose_b=True),
        [[11.0]],
        "float32",
    ),
    "matmul, a transposed": (
        lambda: tf.matmul([[1.0], [2.0]], [[3.0], [4.0]], transpose_a=True),
        [[11.0]],
        "float32",
    ),
    "cast": (lambda: tf.cast([1.8, -1.8], tf.int32), [1, -1], "int32"),
    "cast to float64": (lambda: tf.cast(tf.Variable(1.0), tf.float64), 1.0, "float32"),
    "ones": (lambda: tf.ones([2]), [1.0, 1.0], "float32"),
    "zeros": (lambda: tf.zeros((1, 2), tf.int64), [[0, 0]], "int32"),
    "a scalar of ones": (lambda: tf.ones([]), 1.0, "float32"),
    "ones_like": (lambda: tf.ones_like(tf.constant([3, 4])), [1, 1], "int32"),
    "zeros_like": (lambda: tf.zeros_like([3, 4], tf.float32), [0.0, 0.0], "float32"),
    "range": (lambda: tf.range(3), [0, 1, 2], "int32"),
    "range of floats": (lambda: tf.range(0.0, 1.0, 0.5), [0.0, 0.5], "float32"),
    "range as float32": (lambda: tf.range(1, 3, dtype=tf.float32), [1.0, 2.0], "float32"),
    "stack": (lambda: tf.stack([1.0, tf.Variable(2.0)]), [1.0, 2.0], "float32"),
    "concat": (lambda: tf.concat([[1], [2, 3]], 0), [1, 2, 3], "int32"),
    "reshape": (lambda: tf.reshape(tf.range(4), [2, -1]), [[0, 1], [2, 3]], "int32"),
    "reshape to a scalar": (lambda: tf.reshape([5.0], []), 5.0, "float32"),
    "shape": (lambda: tf.shape(tf.ones([2, 3])), [2, 3], "int32"),
    "shape of a scalar": (lambda: tf.shape(1.0), [], "int32"),
    "reduce_sum": (lambda: tf.reduce_sum([[1, 2], [3, 4]]), 10, "int32"),
    "reduce_sum, axis": (lambda: tf.reduce_sum([[1, 2], [3, 4]], axis=1), [3, 7], "int32"),
    "reduce_sum, axes": (lambda: tf.reduce_sum([[1, 2], [3, 4]], axis=[0, 1]), 10, "int32"),
    "reduce_sum, keepdims": (lambda: tf.reduce_sum([[1, 2]], 1, True), [[3]], "int32"),
    "reduce_sum keeps int8": (lambda: tf.reduce_sum(tf.constant([1, 2], tf.int8)), 3, "int8"),
    "reduce_sum counts bools": (lambda: tf.reduce_sum([True, True]), 2, "int32"),
    "reduce_mean": (lambda: tf.reduce_mean([1.0, 2.0]), 1.5, "float32"),
    "reduce_mean of ints": (lambda: tf.reduce_mean([1, 2]), 1.5, "float32"),
    "reduce_max": (lambda: tf.reduce_max([1.0, 2.0]), 2.0, "float32"),
    "reduce_min": (lambda: tf.reduce_min([[1.0], [2.0]], 0), [1.0], "float32"),
}

# call -> error, text
REFUSED = {
    "an int that needs 64 bits": (
        lambda: tf.constant(2**40),
        ValueError,
        "holds 1099511627776, which does not fit int32",
    ),
    "an int64 that needs 64 bits": (
        lambda: tf.constant(2**40, dtype=tf.int64),
        ValueError,
        "Turn them on with jax.config.update('jax_enable_x64', True)",
    ),
    "an array that needs 64 bits": (
        lambda: tf.cast(np.array([1, -(2**40)]), tf.float32),
        ValueError,
        "holds -1099511627776, which does not fit int32",
    ),
    "a float too large for float32": (
        lambda: tf.constant(1e300),
        ValueError,
        "the value 1e+300 does not fit float32.",
    ),
    "an int too large for uint8": (
        lambda: tf.constant([1, 300], tf.uint8),
        ValueError,
        "the value [1, 300] does not fit uint8.",
    ),
    "a negative number as unsigned": (
        lambda: tf.constant(-1, tf.uint32),
        ValueError,
        "the value -1 does not fit uint32.",
    ),
    "a float as int": (
        lambda: tf.constant(1.5, tf.int32),
        TypeError,
        "a value of dtype float64 is not made int32 without being asked to: write tf.cast",
    ),
    "a float array as int": (
        lambda: tf.convert_to_tensor(jnp.float32(1), tf.int32),
        TypeError,
        "an array of dtype float32 is not made int32 without being asked to: write tf.cast",
    ),
    "a float added to an int tensor": (
        lambda: tf.add(tf.constant(1), 2.5),
        TypeError,
        "a value of dtype float64 is not made int32 without being asked to",
    ),
    "None": (lambda: tf.constant(None), TypeError, "nested lists of them; got None."),
    "a string": (lambda: tf.constant("a"), TypeError, "nested lists of them; got 'a'."),
    "a shape that does not fit": (
        lambda: tf.constant([1, 2, 3], shape=[2, 2]),
        TypeError,
        "cannot reshape array of shape (3,)",
    ),
    "a device that does not exist": (
        lambda: tf.device("CPU:99"),
        ValueError,
        "There is no device 'CPU:99'",
    ),
}


@pytest.mark.parametrize("case", RESULTS)
def test_a_result_has_the_documented_value_and_a_strong_dtype(case):
    call, expected, dtype = RESULTS[case]
    result = call()
    assert_tensor(result, expected, dtype)
    assert not result.weak_type


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exact_is_refused(case):
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_python_numbers_have_the_documented_dtypes_with_x64_too():
    with jax.enable_x64(True):
        assert tf.constant(1.0).dtype == tf.float32
        assert tf.constant(1).dtype == tf.int32
        assert tf.constant(2**40).dtype == tf.int64
        assert tf.constant(1.0, tf.float64).dtype == tf.float64
        assert tf.constant(np.array([1.0])).dtype == tf.float64
        assert tf.range(3).dtype == tf.int32
        assert tf.zeros([1], tf.int64).dtype == tf.int64


def test_a_constant_is_a_copy():
    host = np.zeros(1024, np.float32)
    array = tf.constant(host)
    host += 1.0
    assert array[0] == 0.0
    assert tf.constant(array) is not array
    assert tf.convert_to_tensor(array) is array


def test_a_per_replica_value_is_refused_with_advice():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = strategy.experimental_distribute_values_from_function(lambda ctx: tf.constant(1.0))
    for call in (tf.reduce_sum, tf.identity, tf.constant, lambda v: tf.add(v, 1.0)):
        with pytest.raises(TypeError, match=r"Combine the replicas first with strategy\.reduce"):
            call(value)


@pytest.mark.parametrize("compiled", [False, True])
def test_operations_work_on_variables_and_components_in_a_run(compiled):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = tf.Variable([[1.0, 2.0]])

    def replica_fn(x):
        y = tf.matmul(w, tf.reshape(x, [2, 1]))
        return tf.reduce_mean(tf.square(tf.subtract(y, tf.cast(1, tf.float32))))

    x = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.ones([2]) * (ctx.replica_id_in_sync_group + 1)
    )
    result = strategy.run(tf.function(replica_fn) if compiled else replica_fn, args=(x,))
    assert [float(v) for v in strategy.experimental_local_results(result)] == [4.0, 25.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_what_an_operation_makes_in_a_run_is_per_replica(compiled):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    captured = tf.constant(2.0)

    def replica_fn():
        return captured, tf.identity(captured), tf.constant(2.0)

    same, copied, made = strategy.run(tf.function(replica_fn) if compiled else replica_fn)
    assert same is captured
    for value in (copied, made):
        assert isinstance(value, tf.distribute.DistributedValues)
        assert [float(v) for v in strategy.experimental_local_results(value)] == [2.0, 2.0]


@pytest.mark.parametrize("spelling", ["CPU:3", "/device:CPU:3", "/cpu:3", "cpu:3"])
def test_a_device_scope_places_what_is_created_inside(spelling):
    third = jax.devices()[3]
    with tf.device(spelling):
        made = [tf.constant(1.0), tf.ones([2]), tf.range(3), tf.Variable(1.0), tf.identity(2.0)]
    assert all(value.devices() == {third} for value in made)
    assert tf.constant(1.0).devices() == {jax.devices()[0]}
    assert (made[0] + tf.constant(1.0)) == 2.0  # arrays of different scopes mix


def test_a_device_scope_takes_devices_and_none():
    with tf.device(jax.devices()[2]):
        assert tf.constant(1.0).devices() == {jax.devices()[2]}
        with tf.device(None):
            assert tf.constant(1.0).devices() == {jax.devices()[0]}
    with tf.device(tf.config.list_logical_devices("CPU")[5]):
        assert tf.constant(1.0).devices() == {jax.devices()[5]}
