"""Operators for objects that stand for one array (variables, mirrored values), or refuse to.

`ArrayOperators` forwards every Python operator to ``jax.numpy`` on the object's
current value; `AssignableOperators` refuses ``+=`` and its like. `RefusedOperators` answers the
same operators with one error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from replicax.backend import workers
from replicax.core.errors import InPlaceOperatorError

_BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
_SIGNS = dict(
    zip(_BINARY, ["+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>"], strict=True)
)
_COMPARISON = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_UNARY = {"neg": operator.neg, "pos": operator.pos, "abs": operator.abs, "invert": operator.invert}
_CONVERSIONS = ("bool", "int", "float", "complex", "index", "len", "iter", "round", "divmod")


class _Operator:
    """The type of an operator, for type checkers."""

    def __call__(self, *operands: Any) -> Any: ...


class _Refused:
    """The type of an operator that always raises, for type checkers."""

    def __call__(self, *operands: Any) -> NoReturn: ...


class ArrayOperators:
    """Behaves as the array that `read_value` returns.

    Comparison is elementwise, as for arrays; hashing goes by identity.
    """

    __slots__ = ()
    __array_priority__ = 100  # makes NumPy arrays on the left leave the operator to us

    if TYPE_CHECKING:  # installed below, out of a table
        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = _Operator()
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = _Operator()
        __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __and__ = __rand__ = _Operator()
        __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _Operator()
        __lt__ = __le__ = __gt__ = __ge__ = _Operator()
        __neg__ = __pos__ = __abs__ = __invert__ = _Operator()

    def read_value(self) -> jax.Array:
        """The array this object stands for, now."""
        raise NotImplementedError

    def numpy(self) -> np.ndarray:
        """A copy of the value on the host.

        Returns:
            A host array.

        Example:
            >>> import replicax as rx
            >>> rx.Variable([1.0, 2.0]).numpy()
            array([1., 2.], dtype=float32)
        """
        return workers.translated(lambda: np.array(self.read_value()))

    def __jax_array__(self) -> jax.Array:
        return self.read_value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return workers.translated(lambda: np.array(self.read_value(), dtype=dtype))

    def __getitem__(self, index: Any) -> jax.Array:
        return self.read_value()[index]

    def __len__(self) -> int:
        return len(self.read_value())

    def __iter__(self) -> Any:
        return iter(self.read_value())

    def __bool__(self) -> bool:
        return workers.translated(lambda: bool(self.read_value()))

    def __int__(self) -> int:
        return workers.translated(lambda: int(self.read_value()))

    def __float__(self) -> float:
        return workers.translated(lambda: float(self.read_value()))

    def __complex__(self) -> complex:
        return workers.translated(lambda: complex(self.read_value()))

    def __index__(self) -> int:
        return workers.translated(lambda: operator.index(self.read_value()))

    def __round__(self, ndigits: int = 0) -> jax.Array:
        return jnp.round(self.read_value(), ndigits)

    def __divmod__(self, other: Any) -> Any:
        return divmod(self.read_value(), plain(other))

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return workers.translated(lambda: format(self.read_value(), spec))

    def __getattr__(self, name: str) -> Any:
        # Array methods and properties (``.sum()``, ``.T``, ``.at``) without listing them all.
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.read_value(), name)

    __hash__ = object.__hash__


class AssignableOperators(ArrayOperators):
    """The same for what has `assign`: refuses the operators that look like an assignment."""

    __slots__ = ()

    if TYPE_CHECKING:  # installed below, so that a type checker knows what comes of them
        __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = _Refused()
        __ipow__ = __imatmul__ = __iand__ = __ior__ = __ixor__ = _Refused()
        __ilshift__ = __irshift__ = _Refused()


class RefusedOperators:
    """Answers every use as an array with the error that `_refuse` builds."""

    __slots__ = ()
    __array_priority__ = 100

    def _refuse(self, use: str) -> Exception:
        raise NotImplementedError

    @property
    def __jax_array__(self) -> Any:
        # A property: JAX asks `hasattr` first, which lets our TypeError through.
        raise self._refuse("a JAX function")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise self._refuse("numpy.asarray")

    def numpy(self) -> NoReturn:
        """Raises the error that says how to get one array."""
        raise self._refuse("numpy()")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._refuse(f"the format {spec!r}")
        return str(self)

    def __eq__(self, other: object) -> bool:
        # Against its own kind identity, so that membership works; anything else is a mistake.
        if self is other:
            return True
        if isinstance(other, RefusedOperators) or other is None:
            return False
        raise self._refuse("the operator '=='")

    __hash__ = object.__hash__


def plain(value: Any) -> Any:
    """`value`, or what it stands for if it stands for an array."""
    return value.read_value() if isinstance(value, ArrayOperators) else value


def _install(cls: type, name: str, method: Callable[..., Any]) -> None:
    method.__name__ = method.__qualname__ = f"__{name}__"
    setattr(cls, f"__{name}__", method)


def _forward_binary(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: fn(self.read_value(), plain(other))


def _forward_reflected(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: fn(plain(other), self.read_value())


def _forward_unary(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: fn(self.read_value())


def _refused_in_place(sign: str) -> Callable[[Any, Any], Any]:
    instead = {"+": "v.assign_add(x)", "-": "v.assign_sub(x)"}.get(sign, f"v.assign(v {sign} x)")

    def refuse(self: Any, _: Any) -> Any:
        raise InPlaceOperatorError(
            f"the operator '{sign}=' on variable {self.name!r} would not assign it: its name would "
            f"become that of an array. Write {instead} to assign, or v = v {sign} x for an array."
        )

    return refuse


def _refused(use: str) -> Callable[..., Any]:
    def refuse(self: Any, *_: Any) -> Any:
        raise self._refuse(use)

    return refuse


for _name, _fn in (_BINARY | _COMPARISON).items():
    _install(ArrayOperators, _name, _forward_binary(_fn))
    if _name != "eq" and _name != "ne":
        _install(RefusedOperators, _name, _refused(f"the operator {_name!r}"))
for _name, _fn in _BINARY.items():
    _install(ArrayOperators, f"r{_name}", _forward_reflected(_fn))
    _install(RefusedOperators, f"r{_name}", _refused(f"the operator {_name!r}"))
    _install(AssignableOperators, f"i{_name}", _refused_in_place(_SIGNS[_name]))
for _name, _fn in _UNARY.items():
    _install(ArrayOperators, _name, _forward_unary(_fn))
    _install(RefusedOperators, _name, _refused(f"the operator {_name!r}"))
for _name in _CONVERSIONS:
    _use = {"bool": "'if' or bool()", "iter": "a for loop"}.get(_name, f"{_name}()")
    _install(RefusedOperators, _name, _refused(_use))
_install(RefusedOperators, "getitem", _refused("indexing"))
_install(RefusedOperators, "contains", _refused("the operator 'in'"))
