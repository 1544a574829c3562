"""Nested structures: JAX pytrees in which distributed values and variables are leaves.

A variable is registered with JAX as a pytree node, so that it can be passed to
any JAX function; inside Replicax it must stay one object. Everything here
therefore flattens with `is_leaf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax

Nest = Any
Structure = Any  # a jax.tree_util.PyTreeDef, which type checkers see as a variable


class NestLeaf:
    """Marks a class whose instances are never flattened by this module."""

    __slots__ = ()


_leaves: tuple[type, ...] = (NestLeaf,)


def keep_whole(kind: type) -> None:
    """Makes instances of another library's class leaves, as `NestLeaf` makes those of ours.

    For objects that are pytrees to JAX, and that the library changes in place: taken apart and put
    together again, they would be copies.
    """
    global _leaves
    _leaves = (*_leaves, kind)


def is_leaf(node: object) -> bool:
    """Whether `node` must be kept whole."""
    return isinstance(node, _leaves)


def flatten(tree: Nest) -> tuple[list[Any], Structure]:
    """Leaves and structure of `tree`.

    Example:
        >>> flatten({"b": 2, "a": (1, None)})[0]
        [1, 2]
    """
    return jax.tree_util.tree_flatten(tree, is_leaf=is_leaf)


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Nest:
    """The tree of `structure` with these leaves."""
    return jax.tree_util.tree_unflatten(structure, leaves)


def leaves_with_path(tree: Nest) -> list[tuple[str, Any]]:
    """Every leaf with a readable path, such as ``['image'][0]``; empty for the tree itself."""
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs]


def map_leaves(fn: Callable[..., Any], tree: Nest, *rest: Nest) -> Nest:
    """Applies `fn` to the leaves of one or more trees of the same structure."""
    return jax.tree_util.tree_map(fn, tree, *rest, is_leaf=is_leaf)


def transpose(trees: Sequence[Nest], merge: Callable[[tuple[Any, ...]], Any]) -> Nest:
    """One tree whose leaves are `merge` of the corresponding leaves of all trees.

    Raises:
        ValueError: If the trees differ in structure; both structures are shown.
    """
    flat = [flatten(tree) for tree in trees]
    structure = require_same_structure([structure for _, structure in flat])
    merged = [merge(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
    return unflatten(structure, merged)


def require_same_structure(
    structures: Sequence[Structure],
) -> Structure:
    """The one structure that all replicas returned.

    Raises:
        ValueError: If they differ; both structures are shown.
    """
    first = structures[0]
    for index, other in enumerate(structures):
        if other != first:
            refuse_structures(first, other, index)
    return first


def refuse_structures(first: object, other: object, replica_id: int) -> NoReturn:
    """Raises the error about a replica whose structure is not that of replica 0.

    Raises:
        ValueError: Always; both structures are shown.
    """
    raise ValueError(
        "every replica must return the same structure: "
        f"replica 0 returned {first}, replica {replica_id} returned {other}."
    )
