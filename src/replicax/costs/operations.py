"""The operations of a traced program as a machine executes them, for `costs.timing`.

Where `costs.arithmetic` adds up what a program computes, this keeps the products of matrices apart,
because small ones are slower than large ones, and elementwise operations apart from what moves
data. Nothing here runs or compiles anything, or needs devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from replicax.costs.primitives import num_bytes
from replicax.costs.timing import Product
from replicax.engine.analysis.varying import CALLS
from replicax.jax_internals.primitives import AXES_OF
from replicax.jax_internals.programs import open_jaxpr, sub_jaxprs

FUNCTION_WEIGHT = 8
"""How many simple operations an exponential, a tangent or a root counts as."""

_FUNCTIONS = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log1p", "tanh", "tan", "sin", "cos", "logistic", "erf"),
        *("erfc", "erf_inv", "pow", "sqrt", "rsqrt", "cbrt", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma"),
    }
)
# Another shape of the same elements, or nothing at all in a compiled program.
_FREE = frozenset(
    {
        *("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "stop_gradient", "copy", "iota"),
        *("pvary", "replicax_uniform", "replicax_state", "sharding_constraint", "copy_p", "name"),
        *("optimization_barrier", "convert_element_type", "bitcast_convert_type", "broadcast"),
    }
)
_MOVES = (
    *("reduce_", "arg", "cum", "gather", "scatter", "sort", "top_k", "concatenate"),
    *("dynamic_", "pad", "slice", "split", "select_and_", "rev"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Operations:
    """What one replica executes in a step.

    Attributes:
        products: The products of matrices and the convolutions.
        elements: Elementwise operations, a function such as ``exp`` as `FUNCTION_WEIGHT` of them.
        moved_bytes: What reductions, gathers, slices and the like read and write.
        strided_bytes: What is read and written to put elements into another order: transpositions
            of more than two dims, and of operands whose batch dims are not the first ones. Those of
            matrices are part of the products that use them.
    """

    products: tuple[Product, ...]
    elements: float
    moved_bytes: float
    strided_bytes: float


def read_operations(jaxpr: Any) -> Operations:
    """The operations of a traced program; of what is in a ``shard_map``, those of one replica.

    Args:
        jaxpr: The program, open or closed.

    Returns:
        The operations. Of the branches of a cond those with the most products count, of a while
        loop one round.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> x, w = jnp.ones((8, 32)), jnp.ones((32, 4))
        >>> layer = jax.make_jaxpr(lambda x, w: jnp.tanh(x @ w))(x, w)
        >>> found = read_operations(layer)
        >>> [(product.flops, product.dtype) for product in found.products], found.elements
        ([(2048, 'float32')], 256.0)
    """
    walk = _OperationsWalk()
    walk.run(open_jaxpr(jaxpr), 1)
    return walk.result()


class _OperationsWalk:
    def __init__(self) -> None:
        self._products: dict[Product, float] = {}
        self._elements = self._moved = self._strided = 0.0

    def result(self) -> Operations:
        products = tuple(
            dataclasses.replace(product, count=count) for product, count in self._products.items()
        )
        return Operations(products, self._elements, self._moved, self._strided)

    @property
    def _size(self) -> float:
        """Of what was found so far, to choose among branches."""
        return sum(p.flops * count for p, count in self._products.items()) + self._elements

    def add(self, other: _OperationsWalk, times: float) -> None:
        for product, count in other._products.items():
            self._products[product] = self._products.get(product, 0.0) + times * count
        self._elements += times * other._elements
        self._moved += times * other._moved
        self._strided += times * other._strided

    def run(self, jaxpr: Any, times: float) -> None:
        for eqn in jaxpr.eqns:
            self._equation(eqn, times)

    def _equation(self, eqn: Any, times: float) -> None:
        name = eqn.primitive.name
        if name in CALLS:
            self.run(open_jaxpr(eqn.params[CALLS[name]]), times)
        elif name == "scan":
            self.run(open_jaxpr(eqn.params["jaxpr"]), times * eqn.params["length"])
        elif name == "while":
            self.run(open_jaxpr(eqn.params["body_jaxpr"]), times)
        elif name == "cond":
            branches = [_alone(open_jaxpr(branch)) for branch in eqn.params["branches"]]
            self.add(max(branches, key=lambda branch: branch._size), times)
        elif bodies := sub_jaxprs(eqn.params):
            for body in bodies:
                self.run(body, times)
        elif name == "dot_general":
            self._dot(eqn, times)
        elif name == "conv_general_dilated":
            kernel = eqn.invars[1].aval.shape
            filters = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
            self._product(eqn, 2 * _size(eqn.outvars) * math.prod(kernel) // max(filters, 1), times)
        elif name == "transpose":
            if len(eqn.params["permutation"]) > 2:
                self._strided += times * _traffic(eqn)
        elif name not in _FREE and name not in AXES_OF:
            self._other(eqn, name, times)

    def _dot(self, eqn: Any, times: float) -> None:
        (contracted, _), (batch, other_batch) = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        for atom, dims in zip(eqn.invars, (batch, other_batch), strict=True):
            if tuple(dims) != tuple(range(len(dims))):
                self._strided += times * 2 * num_bytes(atom)
        flops = 2 * _size(eqn.outvars) * math.prod(shape[dim] for dim in contracted)
        self._product(eqn, flops, times, parts=math.prod(shape[dim] for dim in batch))

    def _product(self, eqn: Any, flops: int, times: float, parts: int = 1) -> None:
        """Notes a product that is so many independent ones."""
        parts = max(parts, 1)
        traffic = _traffic(eqn)
        dtype = str(eqn.invars[0].aval.dtype)
        result = sum(map(num_bytes, eqn.outvars))
        one = Product(flops // parts, traffic / parts, result / parts, dtype)
        self._products[one] = self._products.get(one, 0.0) + times * parts

    def _other(self, eqn: Any, name: str, times: float) -> None:
        if name.startswith(_MOVES):
            self._moved += times * _traffic(eqn)
            return
        weight = FUNCTION_WEIGHT if name in _FUNCTIONS else 1
        self._elements += times * weight * _size(eqn.outvars)


def _alone(jaxpr: Any) -> _OperationsWalk:
    walk = _OperationsWalk()
    walk.run(jaxpr, 1)
    return walk


def _traffic(eqn: Any) -> int:
    return sum(map(num_bytes, (*eqn.invars, *eqn.outvars)))


def _size(variables: Sequence[Any]) -> int:
    return math.prod(getattr(variables[0].aval, "shape", ())) if variables else 0
