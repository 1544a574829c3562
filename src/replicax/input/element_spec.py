"""The specs of what a distributed dataset gives, from those of its pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax.core import nest
from replicax.core.spec import PerReplicaSpec, TensorSpec
from replicax.input.steps import LeafType, StepType


def replicated_spec(spec: TensorSpec, size: int | None, num_replicas: int) -> Any:
    """The spec of a leaf with `size` examples (None: any number) on each replica."""
    assert spec.shape is not None
    return merged_spec([_as_handed_out(spec, (size, *spec.shape[1:]))] * num_replicas)


def merged_spec(specs: Sequence[TensorSpec]) -> Any:
    """One spec per replica as one; the bare spec for one replica."""
    return specs[0] if len(specs) == 1 else PerReplicaSpec(*specs)


def handed_out(spec: TensorSpec) -> TensorSpec:
    """The spec with the dtype that JAX gives the array."""
    return _as_handed_out(spec, spec.shape)


def _as_handed_out(spec: TensorSpec, shape: Any) -> TensorSpec:
    return TensorSpec(shape, handed_out_dtype(spec.dtype), spec.name)


def handed_out_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype that JAX gives an array; strings keep theirs."""
    if dtype.kind not in "biufc":
        return dtype
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def type_of_spec(spec: Any) -> StepType | None:
    """The type of a step, if the nest of `TensorSpec` says enough; dims of any size are 0."""
    leaves, structure = nest.flatten(spec)
    if any(leaf.shape is None for leaf in leaves):
        return None
    types = [
        LeafType(tuple(size or 0 for size in leaf.shape), handed_out_dtype(leaf.dtype))
        for leaf in leaves
    ]
    return StepType(structure, tuple(types))


def shapes_of(spec: Any) -> Any:
    """The shapes of a nest of specs, nested in the same way; of one replica, if they are equal."""
    return nest.map_leaves(lambda leaf: _of_replicas(leaf, lambda one: one.shape), spec)


def dtypes_of(spec: Any) -> Any:
    """The names of the dtypes of a nest of specs, nested in the same way."""
    return nest.map_leaves(lambda leaf: _Word(_of_replicas(leaf, lambda one: one.dtype.name)), spec)


def _of_replicas(spec: Any, read: Any) -> Any:
    if not isinstance(spec, PerReplicaSpec):
        return read(spec)
    found = [read(one) for one in spec.components]
    return found[0] if all(one == found[0] for one in found) else tuple(found)


class _Word(str):
    """A string that prints without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
