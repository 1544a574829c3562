"""Names that the documents place under ``tf.dtypes``: the dtypes, as NumPy has them.

They compare equal to the ``dtype`` of an array. The 64-bit ones stand for the
32-bit ones while ``jax_enable_x64`` is off.
"""

import typing

import jax.numpy as jnp
import numpy as np

from replicax.tf.equivalents import missing as _missing

__all__ = [
    "bfloat16",
    "bool",
    "complex128",
    "complex64",
    "float16",
    "float32",
    "float64",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
]

bfloat16 = np.dtype(jnp.bfloat16)
bool = np.dtype("bool")
complex64 = np.dtype("complex64")
complex128 = np.dtype("complex128")
float16 = np.dtype("float16")
float32 = np.dtype("float32")
float64 = np.dtype("float64")
int8 = np.dtype("int8")
int16 = np.dtype("int16")
int32 = np.dtype("int32")
int64 = np.dtype("int64")
uint8 = np.dtype("uint8")
uint16 = np.dtype("uint16")
uint32 = np.dtype("uint32")
uint64 = np.dtype("uint64")


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.dtypes", name)
