"""Checks arguments against a declared ``input_signature``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core import nest
from replicax.core.errors import SignatureError
from replicax.core.spec import PerReplicaSpec, TensorSpec
from replicax.values.distributed import PerReplica
from replicax.values.operators import plain

Spec = TensorSpec | PerReplicaSpec | jax.ShapeDtypeStruct


def parse_signature(signature: Any, name: str) -> tuple[Any, ...]:
    """The signature as a tuple of nests of specs, one per positional argument.

    Raises:
        SignatureError: If it contains anything but specs.
    """
    if not isinstance(signature, (list, tuple)):
        raise SignatureError(
            f"input_signature of {name!r} is {signature!r}; expected a list with one spec (or nest "
            "of specs) for each argument."
        )
    leaves, structure = jax.tree_util.tree_flatten(tuple(signature), is_leaf=_is_spec)
    for leaf in leaves:
        if not _is_spec(leaf):
            raise SignatureError(
                f"input_signature of {name!r} contains {leaf!r}; expected TensorSpec, "
                "PerReplicaSpec or jax.ShapeDtypeStruct."
            )
    return jax.tree_util.tree_unflatten(structure, leaves)


def check_arguments(
    signature: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[Any, ...]:
    """The arguments, numbers turned into arrays of the declared dtype.

    Raises:
        SignatureError: If an argument does not fit its spec.
    """
    if kwargs or len(args) != len(signature):
        raise SignatureError(
            f"{name!r} declares an input_signature of {len(signature)} positional arguments; got "
            f"{len(args)} and keywords {sorted(kwargs)}."
        )
    specs, structure = jax.tree_util.tree_flatten(signature, is_leaf=_is_spec)
    leaves, given = nest.flatten(args)
    if given != structure:
        raise SignatureError(
            f"arguments of {name!r} have the structure {given}, but its input_signature declares "
            f"{structure}."
        )
    paths = [path for path, _ in nest.leaves_with_path(args)]
    checked = [
        _checked(leaf, spec, f"argument {path} of {name!r}")
        for leaf, spec, path in zip(leaves, specs, paths, strict=True)
    ]
    return nest.unflatten(structure, checked)


def _is_spec(node: object) -> bool:
    return isinstance(node, (TensorSpec, PerReplicaSpec, jax.ShapeDtypeStruct))


def _checked(leaf: Any, spec: Spec, what: str) -> Any:
    if isinstance(leaf, PerReplica):
        specs = _per_replica(spec, len(leaf.shapes))
        if len(specs) != len(leaf.shapes):
            raise SignatureError(
                f"{what} has {len(leaf.shapes)} components, but its input_signature declares "
                f"{len(specs)} replicas: {spec}."
            )
        for shape, one in zip(leaf.shapes, specs, strict=True):
            if not one.is_compatible_with(shape, leaf.dtype):
                raise SignatureError(_mismatch(what, shape, leaf.dtype, one))
        return leaf
    value = plain(leaf)
    options = _per_replica(spec, 1) if not isinstance(spec, PerReplicaSpec) else spec.components
    if isinstance(value, (bool, int, float, complex)):
        value = jnp.asarray(value, options[0].dtype)
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        raise SignatureError(f"{what} is {value!r}; its input_signature declares {spec}.")
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if not any(one.is_compatible_with(value.shape, dtype) for one in options):
        raise SignatureError(_mismatch(what, value.shape, dtype, spec))
    return leaf if isinstance(leaf, nest.NestLeaf) else value


def _per_replica(spec: Spec, count: int) -> tuple[TensorSpec, ...]:
    if isinstance(spec, PerReplicaSpec):
        return spec.components
    if isinstance(spec, jax.ShapeDtypeStruct):
        spec = TensorSpec(spec.shape, spec.dtype)
    return (spec,) * count


def _mismatch(what: str, shape: Any, dtype: Any, spec: Any) -> str:
    return (
        f"{what} has shape {tuple(shape)} and dtype {np.dtype(dtype).name}, which does not match "
        f"{spec}. Pass a matching value, or declare unknown dims as None."
    )
