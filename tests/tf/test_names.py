"""Every documented name is there, is the right object, and takes the documented arguments."""

import importlib
import inspect
import re

import jax
import pytest

import replicax as rx
import replicax.tf as tf

DISTRIBUTE = (
    *("CrossDeviceOps", "DistributedValues", "HierarchicalCopyAllReduce", "MirroredStrategy"),
    *("NcclAllReduce", "OneDeviceStrategy", "ReduceOp", "ReductionToOneDevice"),
    *("ReplicaContext", "RunOptions", "Strategy", "StrategyExtended"),
    *("experimental_set_strategy", "get_replica_context", "get_strategy", "has_strategy"),
    *("in_cross_replica_context",),
)
TOP = (
    *("TensorSpec", "TypeSpec", "Variable", "VariableAggregation", "VariableSynchronization"),
    *("get_replica_context", "variable_creator_scope"),
)
DTYPES = (
    *("bfloat16", "bool", "complex64", "complex128", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)

# The documented arguments, in order.
SIGNATURES = {
    "add": "x, y, name=None",
    "add_n": "inputs, name=None",
    "cast": "x, dtype, name=None",
    "concat": "values, axis, name='concat'",
    "config.functions_run_eagerly": "",
    "config.list_logical_devices": "device_type=None",
    "config.list_physical_devices": "device_type=None",
    "config.run_functions_eagerly": "run_eagerly",
    "constant": "value, dtype=None, shape=None, name='Const'",
    "device": "device_name",
    "distribute.HierarchicalCopyAllReduce": "num_packs=1",
    "distribute.MirroredStrategy": "devices=None, cross_device_ops=None",
    "distribute.MirroredStrategy.experimental_distribute_values_from_function": "self, value_fn",
    "distribute.MirroredStrategy.experimental_local_results": "self, value",
    "distribute.MirroredStrategy.gather": "self, value, axis",
    "distribute.MirroredStrategy.run": "self, fn, args=(), kwargs=None, options=None",
    "distribute.MirroredStrategy.scope": "self",
    "distribute.NcclAllReduce": "num_packs=1",
    "distribute.OneDeviceStrategy": "device",
    "distribute.ReductionToOneDevice": "reduce_to_device=None, accumulation_fn=None",
    "distribute.ReplicaContext": "strategy, replica_id_in_sync_group",
    "distribute.ReplicaContext.all_gather": "self, value, axis, options=None",
    "distribute.ReplicaContext.all_reduce": "self, reduce_op, value, options=None",
    "distribute.ReplicaContext.merge_call": "self, merge_fn, args=(), kwargs=None",
    "distribute.RunOptions": (
        "experimental_enable_dynamic_batch_size=True, "
        "experimental_bucketizing_dynamic_shape=False, experimental_xla_options=None"
    ),
    "distribute.Strategy": "extended",
    "distribute.StrategyExtended": "container_strategy",
    "distribute.StrategyExtended.batch_reduce_to": (
        "self, reduce_op, value_destination_pairs, options=None, experimental_hints=None"
    ),
    "distribute.StrategyExtended.call_for_each_replica": "self, fn, args=(), kwargs=None",
    "distribute.StrategyExtended.experimental_run_steps_on_iterator": (
        "self, fn, iterator, iterations=1, initial_loop_values=None"
    ),
    "distribute.StrategyExtended.reduce_to": (
        "self, reduce_op, value, destinations, options=None, experimental_hints=None"
    ),
    "distribute.StrategyExtended.update": "self, var, fn, args=(), kwargs=None, group=True",
    "distribute.StrategyExtended.value_container": "self, value",
    "distribute.StrategyExtended.variable_created_in_scope": "self, v",
    "distribute.experimental.CentralStorageStrategy": "compute_devices=None, parameter_device=None",
    "distribute.experimental.CollectiveHints": "bytes_per_pack=0, timeout_seconds=None",
    "distribute.experimental.ValueContext": "replica_id_in_sync_group=0, num_replicas_in_sync=1",
    "distribute.experimental.partitioners.FixedShardsPartitioner": "num_shards",
    "distribute.experimental.partitioners.MaxSizePartitioner": (
        "max_shard_bytes, max_shards=None, bytes_per_string=16"
    ),
    "distribute.experimental.partitioners.MinSizePartitioner": (
        "min_shard_bytes=262144, max_shards=1, bytes_per_string=16"
    ),
    "distribute.experimental_set_strategy": "strategy",
    "distribute.get_replica_context": "",
    "distribute.get_strategy": "",
    "distribute.has_strategy": "",
    "distribute.in_cross_replica_context": "",
    "divide": "x, y, name=None",
    "estimator.Estimator": "model_fn, model_dir=None, config=None, params=None",
    "estimator.Estimator.evaluate": (
        "self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None"
    ),
    "estimator.Estimator.get_variable_names": "self",
    "estimator.Estimator.get_variable_value": "self, name",
    "estimator.Estimator.latest_checkpoint": "self",
    "estimator.Estimator.predict": (
        "self, input_fn, predict_keys=None, hooks=None, checkpoint_path=None, "
        "yield_single_examples=True"
    ),
    "estimator.Estimator.train": "self, input_fn, hooks=None, steps=None, max_steps=None",
    "estimator.EvalSpec": "input_fn, steps=100, name=None, hooks=None, throttle_secs=0",
    "estimator.TrainSpec": "input_fn, max_steps=None, hooks=None",
    "estimator.train_and_evaluate": "estimator, train_spec, eval_spec",
    "function": (
        "func=None, input_signature=None, autograph=True, jit_compile=None, "
        "reduce_retracing=False, experimental_implements=None, "
        "experimental_autograph_options=None, experimental_attributes=None, "
        "experimental_relax_shapes=None, experimental_compile=None, "
        "experimental_follow_type_hints=None"
    ),
    "get_static_value": "tensor, partial=False",
    "identity": "input, name=None",
    "matmul": "a, b, transpose_a=False, transpose_b=False, name=None",
    "multiply": "x, y, name=None",
    "nest.flatten": "structure",
    "nest.is_nested": "structure",
    "nest.map_structure": "func, *structure",
    "nest.pack_sequence_as": "structure, flat_sequence",
    "nest.assert_same_structure": "nest1, nest2, check_types=True",
    "ones": "shape, dtype=dtype('float32'), name=None",
    "ones_like": "input, dtype=None, name=None",
    "range": "start, limit=None, delta=1, dtype=None, name='range'",
    "reduce_max": "input_tensor, axis=None, keepdims=False, name=None",
    "reduce_mean": "input_tensor, axis=None, keepdims=False, name=None",
    "reduce_min": "input_tensor, axis=None, keepdims=False, name=None",
    "reduce_sum": "input_tensor, axis=None, keepdims=False, name=None",
    "reshape": "tensor, shape, name=None",
    "shape": "input, out_type=dtype('int32'), name=None",
    "square": "x, name=None",
    "stack": "values, axis=0, name='stack'",
    "subtract": "x, y, name=None",
    "variable_creator_scope": "variable_creator",
    "zeros": "shape, dtype=dtype('float32'), name=None",
    "zeros_like": "input, dtype=None, name=None",
}

MISSING = {
    "tf.sin": "replicax.tf has no 'sin'. Write jax.numpy.sin.",
    "tf.where": "replicax.tf has no 'where'. Write jax.numpy.where.",
    "tf.one_hot": "replicax.tf has no 'one_hot'. Write jax.nn.one_hot.",
    "tf.while_loop": "replicax.tf has no 'while_loop'. Write jax.lax.while_loop.",
    "tf.reduce_prod": "replicax.tf has no 'reduce_prod'. Write jax.numpy.prod.",
    "tf.gradients": "replicax.tf has no 'gradients'. Write replicax.grad.",
    "tf.random": "replicax.tf has no 'random'. Write replicax.random and jax.random.",
    "tf.string": "replicax.tf has no 'string'. Write numpy.asarray of str, on the host.",
    "tf.no_such": "replicax.tf has no 'no_such'. JAX has no function of that name either.",
    "tf._private": "replicax.tf has no '_private'.",
    "tf.nn.relu": "replicax.tf.nn has no 'relu'. Write jax.nn.relu.",
    "tf.nn.softmax": "replicax.tf.nn has no 'softmax'. Write jax.nn.softmax.",
    "tf.nn.conv2d": "replicax.tf.nn has no 'conv2d'. Write jax.lax.conv_general_dilated.",
    "tf.nn.no_such": "replicax.tf.nn has no 'no_such'. JAX has no function of that name either.",
    "tf.math.exp": "replicax.tf.math has no 'exp'. Write jax.numpy.exp.",
    "tf.math.lgamma": "replicax.tf.math has no 'lgamma'. Write jax.scipy.special.gammaln.",
    "tf.estimator.DNNClassifier": (
        "replicax.tf.estimator has no 'DNNClassifier'. Write replicax.tf.estimator.Estimator with "
        "a model_fn of your own; see docs/estimator.md."
    ),
    "tf.estimator.FinalExporter": (
        "replicax.tf.estimator has no 'FinalExporter'. Write replicax.saved_model.save."
    ),
    "tf.math.digamma": "replicax.tf.math has no 'digamma'. Write jax.scipy.special.digamma.",
}

GRADIENT_TAPE = """\
JAX has no gradient tape: it differentiates functions. Instead of

    with tf.GradientTape() as tape:
        loss = ...
    gradients = tape.gradient(loss, variables)

write

    def loss_fn():
        return ...
    loss, gradients = replicax.value_and_grad(loss_fn, variables)
"""


def _find(path):
    value = tf
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("name", DISTRIBUTE)
def test_a_name_of_tf_distribute_is_that_of_the_package(name):
    assert getattr(tf.distribute, name) is getattr(rx, name)


@pytest.mark.parametrize("name", TOP)
def test_a_top_name_is_that_of_the_package(name):
    assert getattr(tf, name) is getattr(rx, name)


def test_value_context_is_in_both_places_that_the_documents_name():
    assert tf.distribute.experimental.ValueContext is rx.experimental.ValueContext
    assert tf.distribute.ValueContext is rx.experimental.ValueContext


def test_a_tensor_is_a_jax_array():
    assert tf.Tensor is jax.Array
    assert isinstance(tf.constant(1.0), tf.Tensor)


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_that_of_arrays(name):
    dtype = getattr(tf, name)
    assert getattr(tf.dtypes, name) == dtype
    assert dtype == getattr(jax.numpy, "bool_" if name == "bool" else name)
    assert dtype.name == name


# What a documented signature has beyond the documents, by keyword only.
EXTENSIONS = {
    "distribute.MirroredStrategy": {"logical_devices", "partition_rules", "sharding"},
    "distribute.MultiWorkerMirroredStrategy": {"sharding"},
    "function": {"donate"},
}


@pytest.mark.parametrize("path", SIGNATURES)
def test_a_signature_is_the_documented_one(path):
    parameters = inspect.signature(_find(path)).parameters
    ours = EXTENSIONS.get(path, set())
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in ours)
    documented = [p for name, p in parameters.items() if name not in ours]
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in documented) == SIGNATURES[path]


def test_every_operation_has_a_row_in_the_table_of_signatures():
    ops = importlib.import_module("replicax.tf.ops")
    assert set(ops.__all__) - {"convert_to_tensor"} <= set(SIGNATURES)
    assert list(inspect.signature(tf.convert_to_tensor).parameters) == ["value", "dtype", "name"]


@pytest.mark.parametrize("path", MISSING)
def test_an_unknown_name_says_what_to_write(path):
    namespace, _, name = path.rpartition(".")
    module = tf if namespace == "tf" else _find(namespace.removeprefix("tf."))
    with pytest.raises(AttributeError, match=re.escape(MISSING[path])) as raised:
        getattr(module, name)
    assert str(raised.value) == MISSING[path]


def test_hasattr_works_on_the_modules():
    assert not hasattr(tf, "sin")
    assert not hasattr(tf, "__wrapped__")
    assert not hasattr(tf.nn, "relu")
    assert hasattr(tf.math, "reduce_sum")


def test_a_gradient_tape_says_which_lines_to_write():
    assert isinstance(tf.GradientTape, type)
    with pytest.raises(NotImplementedError, match="value_and_grad") as raised:
        tf.GradientTape(persistent=True)
    assert str(raised.value) == GRADIENT_TAPE


def test_the_lines_that_a_gradient_tape_proposes_work():
    variables = [tf.Variable(3.0), tf.Variable(2.0)]

    def loss_fn():
        return variables[0] * variables[1]

    loss, gradients = rx.value_and_grad(loss_fn, variables)
    assert loss == 6.0
    assert [float(g) for g in gradients] == [2.0, 3.0]


def test_everything_can_be_imported_by_its_place():
    for name in ("compat", "compat.v1", "compat.v1.distribute"):
        assert importlib.import_module(f"replicax.tf.{name}") is _find(name)
    for name in (
        *("config", "config.experimental", "distribute", "dtypes", "estimator", "math"),
        *("nest", "nn"),
    ):
        assert importlib.import_module(f"replicax.tf.{name}") is _find(name)
