"""Frozen option objects, validated when they are made."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class RunOptions:
    """How one ``Strategy.run`` is executed.

    Attributes:
        experimental_enable_dynamic_batch_size: Whether components of different
            shape are accepted by a compiled run. False refuses them.
        experimental_bucketizing_dynamic_shape: Accepted; XLA here compiles the
            true shapes, so it changes nothing, and a notice says so once.
        experimental_xla_options: Compiler options, name to value, for the
            program that contains this run.

    Example:
        >>> RunOptions(experimental_xla_options={"xla_cpu_enable_fast_math": True})
        RunOptions(experimental_enable_dynamic_batch_size=True, \
experimental_bucketizing_dynamic_shape=False, \
experimental_xla_options=mappingproxy({'xla_cpu_enable_fast_math': True}))
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Mapping[str, bool | int | float | str] | None = None

    def __post_init__(self) -> None:
        """Checks the types and freezes the mapping."""
        for field in (
            "experimental_enable_dynamic_batch_size",
            "experimental_bucketizing_dynamic_shape",
        ):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise ValueError(f"RunOptions.{field} is {value!r}; expected True or False.")
        options = self.experimental_xla_options
        if options is None:
            return
        if not isinstance(options, Mapping):
            raise ValueError(
                f"RunOptions.experimental_xla_options is {options!r}; expected a mapping from "
                "compiler option names to values, such as {'xla_cpu_enable_fast_math': True}."
            )
        object.__setattr__(self, "experimental_xla_options", types.MappingProxyType(dict(options)))
