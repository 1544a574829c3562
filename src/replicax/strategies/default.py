"""The default strategy: one replica, ordinary variables, no scope needed."""

from __future__ import annotations

import functools
from typing import Any

from replicax.backend import devices
from replicax.backend.mesh import ReplicaMesh, replica_mesh
from replicax.strategies.base import Strategy
from replicax.strategies.extended import StrategyExtended
from replicax.variables.creation import build_variable
from replicax.variables.variable import Variable


class DefaultExtended(StrategyExtended):
    """Runs everything once, where it is."""

    _is_default = True

    @property
    def mesh(self) -> ReplicaMesh:
        """JAX's default device, looked up late: devices may be configured after import."""
        return self._default_mesh

    @functools.cached_property
    def _default_mesh(self) -> ReplicaMesh:
        return replica_mesh(devices.local_devices()[:1])

    @property
    def num_replicas_in_sync(self) -> int:
        """One."""
        return 1

    def create_variable(self, **options: Any) -> Variable:
        """An ordinary variable.

        Args:
            **options: The arguments of ``Variable``, by name.

        Returns:
            The variable.
        """
        return build_variable(mesh=None, strategy=None, **options)


class DefaultStrategy(Strategy):
    """What ``get_strategy()`` returns outside every scope.

    Example:
        >>> import replicax as rx
        >>> rx.get_strategy()
        <DefaultStrategy: 1 replica>
        >>> rx.get_strategy().run(lambda x: x + 1, args=(1,))
        2
    """

    def __init__(self) -> None:
        """One replica on JAX's default device."""
        super().__init__(DefaultExtended(self))

    def __repr__(self) -> str:
        return "<DefaultStrategy: 1 replica>"
