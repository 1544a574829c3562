"""Says what to write instead of a name that `tf`, `tf.math` or `tf.nn` does not have."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
from jax import lax, nn
from jax.scipy import special

__all__ = ["RENAMED", "missing"]

# Where a function of the same name is looked for, the likeliest place first.
_PLACES: dict[str, tuple[types.ModuleType, ...]] = {
    "tf": (jnp, nn, lax, jax),
    "tf.math": (jnp, nn, special, lax),
    "tf.nn": (nn, lax, jnp),
}

RENAMED = {
    "TensorShape": "tuple",
    "clip_by_value": "jax.numpy.clip",
    "conv2d": "jax.lax.conv_general_dilated",
    "custom_gradient": "jax.custom_vjp",
    "fill": "jax.numpy.full",
    "gather": "jax.numpy.take",
    "gradients": "replicax.grad",
    "image": "jax.image",
    "lgamma": "jax.scipy.special.gammaln",
    "linalg": "jax.numpy.linalg",
    "map_fn": "jax.lax.map",
    "max_pool2d": "jax.lax.reduce_window",
    "norm": "jax.numpy.linalg.norm",
    "numpy_function": "jax.pure_callback",
    "print": "jax.debug.print",
    "py_function": "jax.pure_callback",
    "random": "replicax.random and jax.random",
    "rank": "jax.numpy.ndim",
    "recompute_grad": "jax.checkpoint",
    "reduce_all": "jax.numpy.all",
    "reduce_any": "jax.numpy.any",
    "reduce_logsumexp": "jax.nn.logsumexp",
    "reduce_prod": "jax.numpy.prod",
    "reduce_std": "jax.numpy.std",
    "reduce_variance": "jax.numpy.var",
    "sigmoid_cross_entropy_with_logits": "optax.sigmoid_binary_cross_entropy",
    "softmax_cross_entropy_with_logits": "optax.softmax_cross_entropy",
    "sparse_softmax_cross_entropy_with_logits": "optax.softmax_cross_entropy_with_integer_labels",
    "string": "a numpy array of str, on the host",
    "tensor_scatter_nd_update": "jax.Array.at[...].set",
    "truediv": "jax.numpy.true_divide",
    "vectorized_map": "jax.vmap",
}
"""What replaces a name whose JAX name differs, or whose place is not one that is searched."""


def missing(namespace: str, name: str) -> AttributeError:
    """The error for a `name` that `namespace` does not have.

    Args:
        namespace: ``tf``, ``tf.math`` or ``tf.nn``.
        name: What was asked for.

    Returns:
        The error, which says what to write instead.

    Example:
        >>> missing("tf", "sin")
        AttributeError("replicax.tf has no 'sin'. Write jax.numpy.sin.")
    """
    said = f"replicax.{namespace} has no {name!r}."
    if name.startswith("_"):
        return AttributeError(said)
    instead = RENAMED.get(name) or _same_name(namespace, name)
    if instead is None:
        return AttributeError(f"{said} JAX has no function of that name either.")
    return AttributeError(f"{said} Write {instead}.")


def _same_name(namespace: str, name: str) -> str | None:
    # `vars`, because asking the module itself may warn about a deprecated name.
    for module in _PLACES[namespace]:
        if callable(vars(module).get(name)):
            return f"{module.__name__}.{name}"
    return None
