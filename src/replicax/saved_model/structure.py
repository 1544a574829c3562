"""Nests of arguments and results as JSON, and back.

Pure: knows no arrays. A saved model holds dicts with strings as keys, lists, tuples and None;
classes of the user's own would need their Python code to be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax.checkpoint.errors import SavedModelError

LEAF = "leaf"
MAX_DEPTH = 100


def to_json(nest: Any, what: str, *, depth: int = 0) -> Any:
    """The structure of `nest`; its leaves are those of JAX, in their order.

    Args:
        nest: Dicts, lists and tuples of leaves.
        what: What it is, for the error.
        depth: How deep in a nest this is.

    Raises:
        SavedModelError: If there is another class in it.

    Example:
        >>> to_json({"x": (1.0, None)}, "the result")
        {'dict': {'x': {'tuple': ['leaf', None]}}}
    """
    if nest is None:
        return None
    if depth > MAX_DEPTH:
        raise SavedModelError(f"{what} is nested more than {MAX_DEPTH} deep. Make it flatter.")
    if type(nest) is dict:
        unfit = [key for key in nest if type(key) is not str]
        if unfit:
            raise SavedModelError(
                f"{what} has the dict key {unfit[0]!r}; a saved model holds keys that are strings."
            )
        items = sorted(nest.items())
        return {"dict": {key: to_json(value, what, depth=depth + 1) for key, value in items}}
    if type(nest) in (list, tuple):
        return {type(nest).__name__: [to_json(item, what, depth=depth + 1) for item in nest]}
    if isinstance(nest, (dict, list, tuple)):
        raise SavedModelError(
            f"{what} has a {type(nest).__name__}, which cannot be loaded without its Python code. "
            "Use dicts, lists and tuples."
        )
    return LEAF


def from_json(structure: Any, leaves: Iterator[Any], *, depth: int = 0) -> Any:
    """The nest of this structure, filled with `leaves`.

    Raises:
        ValueError: If it is none, or there are too few leaves.

    Example:
        >>> from_json({"dict": {"x": {"tuple": ["leaf", None]}}}, iter([1.0]))
        {'x': (1.0, None)}
    """
    if structure is None:
        return None
    if structure == LEAF:
        try:
            return next(leaves)
        except StopIteration:
            raise ValueError("a structure has more leaves than values") from None
    if depth > MAX_DEPTH or not isinstance(structure, dict) or len(structure) != 1:
        raise ValueError(f"{str(structure)[:60]} is no structure")
    ((kind, items),) = structure.items()
    if kind == "dict" and isinstance(items, dict):
        return {key: from_json(items[key], leaves, depth=depth + 1) for key in sorted(items)}
    if kind in ("list", "tuple") and isinstance(items, list):
        values = [from_json(item, leaves, depth=depth + 1) for item in items]
        return values if kind == "list" else tuple(values)
    raise ValueError(f"{str(structure)[:60]} is no structure")
