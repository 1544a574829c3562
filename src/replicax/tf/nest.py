"""Names that the documents place under ``tf.nest``.

Nests are JAX pytrees (lists, tuples, dicts, registered classes); variables,
distributed values and None are leaves.
"""

from __future__ import annotations

import typing
from collections import abc

import jax

from replicax.core import nest as _nest

__all__ = [
    "assert_same_structure",
    "flatten",
    "is_nested",
    "map_structure",
    "pack_sequence_as",
]


def flatten(structure: typing.Any) -> list[typing.Any]:
    """The leaves of `structure`; dicts in the order of their keys.

    Args:
        structure: A nest.

    Returns:
        The leaves.

    Example:
        >>> flatten({"b": 2, "a": (1, None)})
        [1, None, 2]
    """
    return jax.tree_util.tree_leaves(structure, is_leaf=_is_leaf)


def map_structure(func: abc.Callable[..., typing.Any], *structure: typing.Any) -> typing.Any:
    """`func` of the corresponding leaves of one or more nests of the same structure.

    Args:
        func: Called with one leaf of each nest.
        *structure: The nests.

    Returns:
        A nest of what `func` returns.

    Raises:
        ValueError: If there is no nest, or they are nested differently.
        TypeError: If they differ in the types of their containers or in dict keys.

    Example:
        >>> map_structure(lambda x, y: x + y, (1, [2]), (10, [20]))
        (11, [22])
    """
    if not structure:
        raise ValueError("map_structure needs at least one nest after func.")
    for other in structure[1:]:
        assert_same_structure(structure[0], other)
    return jax.tree_util.tree_map(func, *structure, is_leaf=_is_leaf)


def pack_sequence_as(structure: typing.Any, flat_sequence: abc.Sequence[typing.Any]) -> typing.Any:
    """A nest like `structure` with the leaves of `flat_sequence`.

    Args:
        structure: A nest.
        flat_sequence: The leaves, in the order of `flatten`.

    Returns:
        The new nest.

    Raises:
        ValueError: If the number of leaves differs.

    Example:
        >>> pack_sequence_as({"a": 0, "b": (0, 0)}, [1, 2, 3])
        {'a': 1, 'b': (2, 3)}
    """
    tree = jax.tree_util.tree_structure(structure, is_leaf=_is_leaf)
    if len(flat_sequence) != tree.num_leaves:
        raise ValueError(
            f"flat_sequence has {len(flat_sequence)} elements, but structure {structure!r} has "
            f"{tree.num_leaves} leaves."
        )
    return jax.tree_util.tree_unflatten(tree, flat_sequence)


def assert_same_structure(nest1: typing.Any, nest2: typing.Any, check_types: bool = True) -> None:
    """Checks that two nests have the same structure.

    Args:
        nest1: A nest.
        nest2: Another.
        check_types: Whether a list and a tuple, for example, count as different.

    Raises:
        ValueError: If they are nested differently.
        TypeError: If they differ only in the types of their containers or in dict keys.

    Example:
        >>> assert_same_structure([1, (2, 3)], [4, (5, 6)])
        >>> assert_same_structure([1, 2], (1, 2), check_types=False)
    """
    tree1, tree2 = (jax.tree_util.tree_structure(nest, is_leaf=_is_leaf) for nest in (nest1, nest2))
    if tree1 == tree2:
        return
    if _nesting(tree1) != _nesting(tree2):
        raise ValueError(f"nests differ in structure: the first is {tree1}, the second {tree2}.")
    if check_types:
        raise TypeError(
            f"nests differ in the types of their containers: the first is {tree1}, the second "
            f"{tree2}."
        )


def is_nested(structure: typing.Any) -> bool:
    """Whether `structure` is a container, not a leaf.

    Args:
        structure: Any value.

    Returns:
        True for a container, an empty one too.

    Example:
        >>> is_nested([]), is_nested(1.0)
        (True, False)
    """
    tree = jax.tree_util.tree_structure(structure, is_leaf=_is_leaf)
    return tree.node_data() is not None


def _is_leaf(node: object) -> bool:
    return node is None or _nest.is_leaf(node)


def _nesting(tree: typing.Any) -> typing.Any:
    """How a structure is nested, without what the containers are."""
    return None if tree.node_data() is None else tuple(map(_nesting, tree.children()))
