"""The documented spelling: ``import replicax.tf as tf`` runs the documents' examples.

Names only. What a name means is in the rest of Replicax; where TensorFlow's
signature differs from JAX's there is a thin function in `tf.ops`. Model code
itself is ordinary JAX: a name that is not here raises AttributeError that says
which JAX function to write.

>>> import replicax.tf as tf
>>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
>>> @tf.function
... def replica_fn(x):
...     total.assign_add(tf.reduce_sum(x))
>>> strategy.run(replica_fn, args=(tf.constant([1.0, 2.0]),))
>>> total.numpy()
array(6., dtype=float32)
"""

import typing

from jax import Array as Tensor

from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.spec import TensorSpec, TypeSpec
from replicax.strategies.current import get_replica_context
from replicax.tf import (
    compat,
    config,
    data,
    distribute,
    dtypes,
    errors,
    estimator,
    io,
    keras,
    math,
    nest,
    nn,
    saved_model,
    summary,
    tpu,
    train,
)
from replicax.tf.dtypes import (
    bfloat16,
    bool,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from replicax.tf.equivalents import missing as _missing
from replicax.tf.function import function
from replicax.tf.gradient_tape import GradientTape
from replicax.tf.ops import (
    add,
    add_n,
    cast,
    concat,
    constant,
    convert_to_tensor,
    device,
    divide,
    get_static_value,
    identity,
    matmul,
    multiply,
    ones,
    ones_like,
    range,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
    reshape,
    shape,
    square,
    stack,
    subtract,
    zeros,
    zeros_like,
)
from replicax.tf.printing import print
from replicax.variables.creators import variable_creator_scope
from replicax.variables.variable import Variable

__all__ = [
    "GradientTape",
    "Tensor",
    "TensorSpec",
    "TypeSpec",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "add",
    "add_n",
    "bfloat16",
    "bool",
    "cast",
    "compat",
    "complex128",
    "complex64",
    "concat",
    "config",
    "constant",
    "convert_to_tensor",
    "data",
    "device",
    "distribute",
    "divide",
    "dtypes",
    "errors",
    "estimator",
    "float16",
    "float32",
    "float64",
    "function",
    "get_replica_context",
    "get_static_value",
    "identity",
    "int16",
    "int32",
    "int64",
    "int8",
    "io",
    "keras",
    "math",
    "matmul",
    "multiply",
    "nest",
    "newaxis",
    "nn",
    "ones",
    "ones_like",
    "print",
    "range",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "reshape",
    "saved_model",
    "shape",
    "square",
    "stack",
    "subtract",
    "summary",
    "tpu",
    "train",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "variable_creator_scope",
    "zeros",
    "zeros_like",
]

newaxis = None


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf", name)
