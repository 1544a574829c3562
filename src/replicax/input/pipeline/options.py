"""Options that a dataset carries to where it is distributed."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from replicax.core.enums import AutoShardPolicy


class _Settings:
    """Attributes that can be set, each of them known by name."""

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self._set: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._defaults:
            raise AttributeError(self._unknown(name))
        return self._set.get(name, self._defaults[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_set":
            if name not in self._defaults:
                raise AttributeError(self._unknown(name))
            self._check(name, value)
            self._set[name] = value
            return
        super().__setattr__(name, value)

    def _check(self, name: str, value: Any) -> None:
        """Refuses values that an attribute cannot have."""

    def _unknown(self, name: str) -> str:
        return f"{type(self).__name__} has no {name!r}; it has {', '.join(self._defaults)}."

    def _is_set(self, name: str) -> bool:
        """Whether an attribute was given a value."""
        return name in self._set

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in sorted(self._set.items()))
        return f"{type(self).__name__}({shown})"


class DistributeOptions(_Settings):
    """How a dataset is divided among workers.

    Attributes:
        auto_shard_policy: An `AutoShardPolicy`.
        num_devices: Accepted; the strategy knows its devices.

    Example:
        >>> options = DistributeOptions()
        >>> options.auto_shard_policy = AutoShardPolicy.DATA
        >>> options
        DistributeOptions(auto_shard_policy=<AutoShardPolicy.DATA: 2>)
    """

    _defaults: ClassVar[dict[str, Any]] = {
        "auto_shard_policy": AutoShardPolicy.AUTO,
        "num_devices": None,
    }

    def _check(self, name: str, value: Any) -> None:
        if name == "auto_shard_policy" and not isinstance(value, AutoShardPolicy):
            names = [f"AutoShardPolicy.{policy.name}" for policy in AutoShardPolicy]
            raise TypeError(f"auto_shard_policy is {value!r}; expected one of {names}.")


class Options(_Settings):
    """What a dataset carries along; ``with_options`` attaches a copy.

    Attributes:
        deterministic: Accepted; the order of elements is always determined here.
        experimental_deterministic: The older name of `deterministic`.
        experimental_distribute: How it is divided among workers, `DistributeOptions`.

    Example:
        >>> options = Options()
        >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
        >>> options.experimental_distribute.auto_shard_policy.name
        'OFF'
    """

    _defaults: ClassVar[dict[str, Any]] = {
        "deterministic": None,
        "experimental_deterministic": None,
        "experimental_distribute": None,
    }

    def __init__(self) -> None:
        super().__init__()
        self._set["experimental_distribute"] = DistributeOptions()

    def _check(self, name: str, value: Any) -> None:
        if name == "experimental_distribute" and not isinstance(value, DistributeOptions):
            raise TypeError(f"experimental_distribute is {value!r}; expected a DistributeOptions.")

    @property
    def _auto_shard_policy(self) -> AutoShardPolicy | None:
        """The policy that was set, None if none was."""
        distribute: DistributeOptions = self.experimental_distribute
        return distribute.auto_shard_policy if distribute._is_set("auto_shard_policy") else None

    def merge(self, options: Options) -> Options:
        """These options, with what `options` sets instead.

        Args:
            options: The options that come later.

        Returns:
            New options.
        """
        merged = copy.deepcopy(self)
        later = copy.deepcopy(options)
        distribute = merged._set["experimental_distribute"]
        distribute._set.update(later._set.pop("experimental_distribute")._set)
        merged._set.update(later._set)
        return merged
