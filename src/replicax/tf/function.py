"""``tf.function`` with the documented arguments: `replicax.function`, and what has no effect."""

from __future__ import annotations

import functools
import typing
from collections import abc

from replicax.core import notices as _notices
from replicax.engine.functions import function as _function

__all__ = ["function"]

_P = typing.ParamSpec("_P")
_R = typing.TypeVar("_R")


class _Options(typing.TypedDict, total=False):
    """The arguments that say how to compile."""

    autograph: bool
    jit_compile: bool | None
    reduce_retracing: bool
    experimental_implements: typing.Any
    experimental_autograph_options: typing.Any
    experimental_attributes: typing.Any
    experimental_relax_shapes: bool | None
    experimental_compile: bool | None
    experimental_follow_type_hints: bool | None
    donate: bool


@typing.overload
def function(
    func: abc.Callable[_P, _R],
    input_signature: typing.Any = None,
    **options: typing.Unpack[_Options],
) -> _function.Function[_P, _R]: ...


@typing.overload
def function(
    func: None = None, input_signature: typing.Any = None, **options: typing.Unpack[_Options]
) -> abc.Callable[[abc.Callable[_P, _R]], _function.Function[_P, _R]]: ...


def function(
    func: abc.Callable[..., typing.Any] | None = None,
    input_signature: typing.Any = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: typing.Any = None,
    experimental_autograph_options: typing.Any = None,
    experimental_attributes: typing.Any = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
    *,
    donate: bool = True,
) -> typing.Any:
    """Compiles a Python function into one program; works as ``@tf.function`` and with arguments.

    Args:
        func: The function.
        input_signature: As for `replicax.function`.
        autograph: No effect: there is no AutoGraph, and an ``if`` on a traced value raises.
        jit_compile: XLA compiles in any case.
        reduce_retracing: No effect: a program is for arrays of certain shapes.
        experimental_implements: Refused.
        experimental_autograph_options: Refused.
        experimental_attributes: Refused.
        experimental_relax_shapes: The older name of `reduce_retracing`.
        experimental_compile: The older name of `jit_compile`.
        experimental_follow_type_hints: Refused.
        donate: As for `replicax.function`.

    Returns:
        The compiled function; without `func`, a decorator.

    Raises:
        TypeError: If an argument is given that is refused, or `func` is not callable.

    Example:
        >>> @function(jit_compile=True)
        ... def double(x):
        ...     return 2 * x
        >>> float(double(4.0))
        8.0
    """
    refused = {
        "experimental_attributes": experimental_attributes,
        "experimental_autograph_options": experimental_autograph_options,
        "experimental_follow_type_hints": experimental_follow_type_hints,
        "experimental_implements": experimental_implements,
    }
    for name, value in refused.items():
        if value is not None:
            raise TypeError(
                f"tf.function got {name}={value!r}, which is about TensorFlow's graphs. Leave it "
                "out: replicax.function traces by the types of the arguments."
            )
    if jit_compile is False or experimental_compile is False:
        _notices.notify_once(
            ("tf.function", "jit_compile"),
            "tf.function(jit_compile=False) has no effect: XLA compiles every function. To run "
            "them as plain Python, call tf.config.run_functions_eagerly(True).",
        )
    if reduce_retracing or experimental_relax_shapes:
        _notices.notify_once(
            ("tf.function", "reduce_retracing"),
            "tf.function(reduce_retracing=True) has no effect: a program is for arrays of certain "
            "shapes. Pad them to few shapes, or batch with drop_remainder=True.",
        )
    if func is None:
        return functools.partial(_function.function, input_signature=input_signature, donate=donate)
    return _function.function(func, input_signature, donate)
