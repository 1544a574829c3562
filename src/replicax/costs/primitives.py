"""The primitives of JAX by what they cost: which send, which call Python, which only move elements.

A primitive in none of the tables is named as uncounted, and never taken for a free one.
"""

from __future__ import annotations

import math
from typing import Any

KINDS = {
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "unreduced_psum": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_gather_reduced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "unreduced_reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "all-to-all",
    "ppermute": "collective-permute",
    "pbroadcast": "broadcast",
    "psend": "collective-permute",
}
"""What XLA calls the primitives of JAX that send something."""


HOST_CALLS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})
"""Callbacks to Python."""

MOVES = frozenset(
    {
        *("reshape", "squeeze", "broadcast_in_dim", "transpose", "rev", "copy", "tile", "stack"),
        *("slice", "dynamic_slice", "gather", "concatenate", "pad", "stop_gradient", "split"),
        *("convert_element_type", "optimization_barrier", "sharding_constraint", "unstack"),
        *("dynamic_update_slice", "pvary", "replicax_uniform", "get", "swap", "reshard"),
    }
)
"""What only moves elements: the output is a part of the input, or has another shape or type."""

READS = frozenset({"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "concatenate"})
"""What reads and writes memory without computing: as much as it gives, twice."""

FREE = frozenset(
    {
        *("iota", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "scatter"),
        *("bitcast_convert_type", "select_n", "is_finite", "sign", "reduce_precision", "mulhi"),
        *("shift_left", "shift_right_logical", "shift_right_arithmetic", "population_count", "clz"),
        *("random_wrap", "random_unwrap", "random_clone", "random_bits", "random_seed"),
        *("random_split", "random_fold_in", "threefry2x32", "rng_bit_generator", "rng_uniform"),
        *("new_ref", "freeze", "empty_ref", "free_ref", "addupdate", "real", "imag", "empty"),
        *("name", "create_token", "after_all", "device_put", "reduce_xor", "platform_index"),
    }
)
"""What has no floating-point operations, or is computed with its neighbours."""

ELEMENTWISE = frozenset(
    {
        *("add", "add_any", "sub", "mul", "div", "rem", "neg", "max", "min", "abs", "clamp", "pow"),
        *("integer_pow", "square", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh"),
        *("acosh", "atanh", "logistic", "erf", "erfc", "erf_inv", "lgamma", "digamma", "floor"),
        *("ceil", "round", "nextafter", "conj", "complex", "igamma", "igammac"),
        *("bessel_i0e", "bessel_i1e", "polygamma", "regularized_incomplete_beta"),
    }
)
"""One operation for each element of the result."""


def num_bytes(atom: Any) -> int:
    """The bytes of the value of a variable of a jaxpr, on one device."""
    aval = atom.aval
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return 0
    return math.prod(aval.shape) * getattr(dtype, "itemsize", 4)
