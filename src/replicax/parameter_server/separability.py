"""Finds out whether servers may update their shards by themselves, each with what it has.

A transformation is traced, never trusted: what an output depends on is read from the program. What
mixes variables, draws random numbers, or makes something of a variable's whole shape would give
another result in parts, and is refused with the way to write it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core.errors import VariableError
from replicax.jax_internals.programs import Literal, open_jaxpr
from replicax.optimizers.parts import ELEMENTWISE

_CALLS = ("jaxpr", "call_jaxpr")
_FILLING = frozenset({"broadcast_in_dim", "iota", "full_like"})
Owners = frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Separability:
    """What the update of a transformation does with its parameters.

    Attributes:
        mixed: For each output that depends on several parameters, or on one that it does not
            belong to: these parameters.
        whole: The parameters of which it uses more than one element for an element, and how.
        random: Whether it draws random numbers.
    """

    mixed: tuple[Owners, ...]
    whole: dict[int, str]
    random: bool


class UpdateProgram:
    """The update of a transformation as a program over leaves.

    Args:
        transformation: The Optax transformation.
        structure: The structure of the parameters.
        shapes: A ``jax.ShapeDtypeStruct`` for each of them.
        state: The state, with such a struct at each leaf that is an array.
        owners: For each of these leaves the parameter that it belongs to, or None.
    """

    def __init__(
        self,
        transformation: Any,
        structure: Any,
        shapes: Sequence[Any],
        state: Any,
        owners: Sequence[int | None],
    ) -> None:
        self._transformation = transformation
        self._structure = structure
        self._shapes = list(shapes)
        self._state = state
        self._owners = list(owners)

    def separability(self) -> Separability:
        """What the update does with its parameters."""
        closed = self._traced(self._shapes, self._state)
        count = len(self._shapes)
        own = [frozenset([index]) for index in range(count)]
        of_state = [frozenset() if o is None else frozenset([o]) for o in self._owners]
        walk = _Dependencies()
        outputs = walk.run(closed.jaxpr, [*own, *of_state, *own])
        mixed = tuple(
            found
            for found, expected in zip(outputs, [*own, *of_state], strict=True)
            if not found <= expected
        )
        return Separability(mixed, walk.whole, walk.random)

    def depends_on_shape(self, index: int, part: tuple[int, ...]) -> bool:
        """Whether a number in the program is another one when a parameter has the shape `part`."""
        full = self._shapes[index].shape
        shapes = list(self._shapes)
        shapes[index] = jax.ShapeDtypeStruct(part, shapes[index].dtype)
        owners = iter(self._owners)

        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                return leaf
            is_slot = next(owners) == index and leaf.shape == full
            return jax.ShapeDtypeStruct(part, leaf.dtype) if is_slot else leaf

        whole = self._traced(self._shapes, self._state)
        in_part = self._traced(shapes, jax.tree.map(cut, self._state))
        return [*_numbers(whole)] != [*_numbers(in_part)]

    def keeps_rows_without_gradient(self) -> bool:
        """Whether a gradient of zero leaves a parameter and its slots as they are."""
        random = np.random.default_rng(0)
        small = [jax.ShapeDtypeStruct((2,) * len(s.shape), s.dtype) for s in self._shapes]

        def drawn(struct: Any) -> Any:
            return jnp.asarray(random.uniform(0.5, 1.5, struct.shape)).astype(struct.dtype)

        parameters = jax.tree.unflatten(self._structure, [drawn(s) for s in small])
        state = self._transformation.init(parameters)
        leaves, structure = jax.tree.flatten(state)
        owners = iter(self._owners)
        arrays = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        is_slot = [is_array and next(owners) is not None for is_array in arrays]
        before = [
            drawn(leaf) if slot and jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
            for leaf, slot in zip(leaves, is_slot, strict=True)
        ]
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        updates, new = self._transformation.update(
            zeros, jax.tree.unflatten(structure, before), parameters
        )
        after = jax.tree.leaves(new)
        stays = all(
            bool(jnp.all(old == now))
            for old, now, slot in zip(before, after, is_slot, strict=True)
            if slot
        )
        return stays and not any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(updates))

    def _traced(self, shapes: Sequence[Any], state: Any) -> Any:
        leaves, structure = jax.tree.flatten(state)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]

        def update(gradients: list[Any], arrays: list[Any], parameters: list[Any]) -> Any:
            filled = list(leaves)
            for index, array in zip(at, arrays, strict=True):
                filled[index] = array
            updates, new = self._transformation.update(
                jax.tree.unflatten(self._structure, gradients),
                jax.tree.unflatten(structure, filled),
                jax.tree.unflatten(self._structure, parameters),
            )
            new_leaves = structure.flatten_up_to(new)
            return jax.tree.leaves(updates), [new_leaves[index] for index in at]

        return jax.make_jaxpr(update)(list(shapes), [leaves[i] for i in at], list(shapes))


class _Dependencies:
    """Follows through a program which parameters a value depends on."""

    def __init__(self) -> None:
        self.whole: dict[int, str] = {}
        self.random = False

    def run(self, jaxpr: Any, inputs: Sequence[Owners]) -> list[Owners]:
        env: dict[Any, Owners] = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Owners:
            return frozenset() if isinstance(atom, Literal) else env.get(atom, frozenset())

        for eqn in jaxpr.eqns:
            own = [read(atom) for atom in eqn.invars]
            env.update(zip(eqn.outvars, self._equation(eqn, own), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, own: list[Owners]) -> list[Owners]:
        name = eqn.primitive.name
        self.random |= name.startswith(("random_", "threefry"))
        for parameter in _CALLS:
            body = eqn.params.get(parameter)
            if body is not None and len(open_jaxpr(body).invars) == len(own):
                return self.run(open_jaxpr(body), own)
        every = frozenset().union(*own)
        is_scalar = not any(getattr(atom.aval, "shape", ()) for atom in eqn.invars)
        if name not in ELEMENTWISE and not (is_scalar and name in _FILLING):
            for atom, owners in zip(eqn.invars, own, strict=True):
                if atom.aval.shape:
                    self.whole.update((owner, name) for owner in owners)
        return [every] * len(eqn.outvars)


def _numbers(closed: Any) -> Iterator[Any]:
    """The operations of a program, and the numbers that are written in it."""

    def walk(jaxpr: Any) -> Iterator[Any]:
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            yield from (str(a.val) for a in eqn.invars if isinstance(a, Literal))
            for parameter in _CALLS:
                if (body := eqn.params.get(parameter)) is not None:
                    yield from walk(open_jaxpr(body))

    yield from walk(closed.jaxpr)
    yield from (str(const) for const in closed.consts if not np.shape(const))


def refuse_mixing(found: Separability, names: Sequence[str], optimizer: str) -> None:
    """Raises if servers that have some of the parameters each cannot do what the update does.

    Raises:
        VariableError: In that case.
    """
    way = (
        "Clip by rx.Optimizer(..., clip_global_norm=...), which is done on the worker, or use one "
        "parameter server."
    )
    if found.random:
        raise VariableError(
            f"optimizer {optimizer!r} draws random numbers, which would differ on each parameter "
            "server. Add the noise to the gradients in the closure, or use one parameter server."
        )
    if found.mixed:
        together = sorted({names[index] for owners in found.mixed for index in owners})
        raise VariableError(
            f"optimizer {optimizer!r} computes with the gradients of several variables together "
            f"({', '.join(together)}), and they are on different parameter servers. {way}"
        )


def refuse_whole(
    program: UpdateProgram, found: Separability, index: int, name: str, part: tuple[int, ...]
) -> None:
    """Raises if the update of a parameter that is cut needs the whole of it.

    Raises:
        VariableError: In that case.
    """
    how = found.whole.get(index)
    if how is None and program.depends_on_shape(index, part):
        how = "its shape"
    if how is not None:
        raise VariableError(
            f"the optimizer needs the whole of variable {name!r} ({how}), and its rows are on "
            "several parameter servers. Leave it whole (a partitioner may say so by its shape), or "
            "use an optimizer that treats every element alike, such as SGD, Adam or Adagrad."
        )
