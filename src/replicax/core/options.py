"""Frozen option objects, validated when they are made."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Mapping

from replicax.core.enums import InputReplicationMode

_MAX_SECONDS = 1e8  # the runtime counts them in 32 bits


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


class CommunicationImplementation(enum.Enum):
    """Which library carries the collectives; AUTO leaves it to the platform.

    Example:
        >>> options = CommunicationOptions(implementation=CommunicationImplementation.RING)
        >>> options.implementation.name
        'RING'
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@dataclasses.dataclass(frozen=True, slots=True)
class CommunicationOptions:
    """Hints for collectives.

    Attributes:
        bytes_per_pack: The size of an operand that values are packed into; 0
            packs all small values of one type together.
        timeout_seconds: How long a collective may take, where that can be limited.
        implementation: Which library carries the collectives.
        deterministic: Whether values of different replicas are added in the order of
            the replicas, so that the same global batch gives the same bits however the
            replicas are spread over workers. Costs memory for the values of all replicas.

    Example:
        >>> CommunicationOptions(bytes_per_pack=1 << 20).bytes_per_pack
        1048576
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO
    deterministic: bool = False

    def __post_init__(self) -> None:
        """Checks the values."""
        if isinstance(self.bytes_per_pack, bool) or not isinstance(self.bytes_per_pack, int):
            raise ValueError(f"bytes_per_pack is {self.bytes_per_pack!r}; expected an int.")
        if self.bytes_per_pack < 0:
            raise ValueError(f"bytes_per_pack is {self.bytes_per_pack}; expected 0 or more.")
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds <= _MAX_SECONDS:
            raise ValueError(
                f"timeout_seconds is {self.timeout_seconds}; expected more than 0 and at most "
                f"{_MAX_SECONDS:g}, or None."
            )
        if not isinstance(self.implementation, CommunicationImplementation):
            names = [f"CommunicationImplementation.{m.name}" for m in CommunicationImplementation]
            raise ValueError(f"implementation is {self.implementation!r}; expected one of {names}.")


class CollectiveHints(CommunicationOptions):
    """`CommunicationOptions` by their older name, without the choice of a library.

    Args:
        bytes_per_pack: As for `CommunicationOptions`.
        timeout_seconds: As for `CommunicationOptions`.

    Example:
        >>> CollectiveHints(bytes_per_pack=1 << 20).bytes_per_pack
        1048576
    """

    __slots__ = ()

    def __init__(self, bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> None:
        super().__init__(bytes_per_pack, timeout_seconds)


def bytes_per_pack_of(options: object) -> int:
    """The pack size that `options` asks for.

    Raises:
        TypeError: If it is neither None nor a `CommunicationOptions`.
    """
    if options is None:
        return 0
    if isinstance(options, CommunicationOptions):
        return options.bytes_per_pack
    raise TypeError(f"options is {options!r}; expected CommunicationOptions or None.")


@dataclasses.dataclass(frozen=True, slots=True)
class InputOptions:
    """How a distributed dataset hands its batches to the replicas.

    Attributes:
        experimental_fetch_to_device: Whether batches are put on the replicas' devices.
            False leaves them on the host. None, the default, means True.
        experimental_replication_mode: Whether ``dataset_fn`` makes one pipeline for
            all replicas of a worker or one for each.
        experimental_place_dataset_on_device: Whether each replica's pipeline runs with
            the replica's device as JAX's default device. Needs PER_REPLICA, and
            ``experimental_fetch_to_device=False``.
        experimental_per_replica_buffer_size: How many batches are made ready ahead of
            the step that takes them. With 1, the default, a thread reads ahead where
            measuring the source shows that it pays; 0 never reads ahead, 2 and more
            always do.

    Example:
        >>> InputOptions(experimental_per_replica_buffer_size=4).experimental_fetch_to_device
    """

    experimental_fetch_to_device: bool | None = None
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1

    def __post_init__(self) -> None:
        """Checks the values and that they fit each other."""
        fetch = self.experimental_fetch_to_device
        if fetch is not None and not isinstance(fetch, bool):
            raise ValueError(
                f"InputOptions.experimental_fetch_to_device is {fetch!r}; expected True, False or "
                "None."
            )
        mode = self.experimental_replication_mode
        if not isinstance(mode, InputReplicationMode):
            names = [f"InputReplicationMode.{m.name}" for m in InputReplicationMode]
            raise ValueError(
                f"InputOptions.experimental_replication_mode is {mode!r}; expected one of {names}."
            )
        size = self.experimental_per_replica_buffer_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ValueError(
                f"InputOptions.experimental_per_replica_buffer_size is {size!r}; expected an int, "
                "0 or more."
            )
        if self.experimental_place_dataset_on_device and (
            fetch is not False or mode is not InputReplicationMode.PER_REPLICA
        ):
            raise ValueError(
                "InputOptions.experimental_place_dataset_on_device=True needs "
                "experimental_fetch_to_device=False and experimental_replication_mode="
                f"InputReplicationMode.PER_REPLICA; got {fetch!r} and {mode}."
            )
