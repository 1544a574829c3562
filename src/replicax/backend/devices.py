"""Names, lists and configures the devices of this process.

Strings in the documented spelling become `jax.Device` objects here and nowhere else. A machine
without accelerators can stand in for one: its CPU is divided into virtual devices, which may be
called ``GPU:0`` to ``GPU:n-1``. Nothing here starts JAX unless its docstring says so.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import jax

from replicax.backend import cpu_client
from replicax.core.errors import DeviceError, UnknownDeviceError
from replicax.core.typing import Device
from replicax.jax_internals.processes import has_started

KINDS = ("CPU", "GPU", "TPU")

# Threads of the CPU client for each virtual device. A program that runs may need one for each
# device at once, and so may every thread that launches programs without waiting for them (see
# runahead): those of Replicax count as one such thread, the other is the user's own. Who has more
# sets NPROC. More threads than cores are not free, docs/measured_results.md has what they cost.
THREADS_PER_CPU_DEVICE = 3

_SPEC = re.compile(
    r"(?:/job:(?P<job>\w+))?(?:/replica:(?P<replica>\d+))?(?:/task:(?P<task>\d+))?"
    r"/?(?:device:)?(?P<kind>[A-Za-z]+)(?::(?P<index>\d+))?"
)

# Where Linux shows that an accelerator may be there. JAX itself only tells once it has started.
_DEVICE_FILES = {
    "GPU": ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg"),
    "TPU": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
}
_PLATFORM_NAMES = {"GPU": ("gpu", "cuda", "rocm"), "TPU": ("tpu",)}


@dataclasses.dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """A device of the machine, before it is divided.

    Attributes:
        name: For example ``/physical_device:CPU:0``.
        device_type: ``CPU``, ``GPU`` or ``TPU``.

    Example:
        >>> import replicax.tf as tf
        >>> tf.config.list_physical_devices("CPU")[0]
        PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')
    """

    name: str
    device_type: str


@dataclasses.dataclass(frozen=True, slots=True)
class LogicalDevice:
    """A device that programs run on.

    Attributes:
        name: For example ``/device:GPU:1``; every function that takes devices understands it.
        device_type: ``CPU``, ``GPU`` or ``TPU``.

    Example:
        >>> import replicax.tf as tf
        >>> tf.config.list_logical_devices("CPU")[1]
        LogicalDevice(name='/device:CPU:1', device_type='CPU')
    """

    name: str
    device_type: str


@dataclasses.dataclass(frozen=True, slots=True)
class LogicalDeviceConfiguration:
    """One logical device to be made out of a physical one.

    Attributes:
        memory_limit: Megabytes; accepted for a virtual GPU and without effect, refused for a CPU.
        experimental_priority: Accepted likewise, without effect.
        experimental_device_ordinal: Accepted likewise, without effect.

    Example:
        >>> print(LogicalDeviceConfiguration().memory_limit)
        None
    """

    memory_limit: float | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None


DeviceSpec: TypeAlias = Device | LogicalDevice | str


@dataclasses.dataclass(slots=True)
class _VirtualMachine:
    """What the virtual devices of this process stand for; one per process, as JAX's own."""

    kind: str = "CPU"
    logical_per_physical: tuple[int, ...] = ()  # of `kind`; empty for a machine as it is

    @property
    def is_accelerated(self) -> bool:
        return self.kind != "CPU"


_machine = _VirtualMachine()


# -- configuration -----------------------------------------------------------------------------


def set_virtual_devices(num_devices: int, kind: str = "CPU") -> None:
    """Turns this machine's CPU into `num_devices` devices, before JAX has started.

    JAX then runs on the CPU only, also where accelerators exist. The last call counts.

    Args:
        num_devices: How many devices, at least 1.
        kind: What the devices are called: ``CPU``, or ``GPU`` or ``TPU`` to run a program that
            names accelerators. The names ``CPU:0`` to ``CPU:n-1`` mean the same devices then.

    Raises:
        DeviceError: JAX has started already.
        ValueError: `num_devices` or `kind` is not one of the above.

    Example:
        >>> import replicax as rx
        >>> rx.set_virtual_devices(8)  # doctest: +SKIP
        >>> rx.MirroredStrategy().num_replicas_in_sync
        8
    """
    _check_num_devices(num_devices)
    kind = _check_kind(kind)
    _check_not_started("set_virtual_devices")
    jax.config.update("jax_platforms", "cpu")
    _divide_cpu(num_devices)
    _machine.kind = kind
    _machine.logical_per_physical = (1,) * num_devices


def set_logical_device_configuration(
    physical_device: PhysicalDevice, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None:
    """Divides a physical device into logical ones, before JAX has started.

    The CPU can be divided, and a virtual GPU or TPU; JAX cannot divide a real accelerator.

    Args:
        physical_device: One of `list_physical_devices`.
        logical_devices: One configuration for each logical device.

    Raises:
        DeviceError: JAX has started already, or the device cannot be divided.
        ValueError: The device is unknown, or the configurations are empty or not for a CPU.

    Example:
        >>> import replicax.tf as tf
        >>> cpu = tf.config.list_physical_devices("CPU")[0]
        >>> two = [tf.config.LogicalDeviceConfiguration()] * 2
        >>> tf.config.set_logical_device_configuration(cpu, two)  # doctest: +SKIP
    """
    if not logical_devices:
        raise ValueError(
            f"logical_devices is empty: {physical_device.name} would have no device left. Pass one "
            "LogicalDeviceConfiguration() for each logical device."
        )
    _check_not_started("set_logical_device_configuration")
    kind, index = physical_device.device_type, _physical_index(physical_device)
    if kind == "CPU":
        if any(c != LogicalDeviceConfiguration() for c in logical_devices):
            raise ValueError(
                "A logical CPU device has no memory limit, priority or ordinal, got "
                f"{list(logical_devices)}. Use LogicalDeviceConfiguration()."
            )
        if _machine.is_accelerated:
            raise DeviceError(
                f"The CPU stands for {len(_machine.logical_per_physical)} virtual {_machine.kind} "
                "devices already and cannot be divided again. Divide those devices, or call "
                'set_virtual_devices with kind="CPU".'
            )
        _divide_cpu(len(logical_devices))
        _machine.logical_per_physical = (len(logical_devices),)
        return
    if kind != _machine.kind:
        raise DeviceError(
            f"JAX cannot divide {physical_device.name}: a program has a real {kind} to itself. "
            f'To try a program on virtual devices, call set_virtual_devices(n, kind="{kind}").'
        )
    counts = list(_machine.logical_per_physical)
    counts[index] = len(logical_devices)
    _divide_cpu(sum(counts))
    _machine.logical_per_physical = tuple(counts)


def prepare_cpu_backend() -> None:
    """Gives a CPU client that has not started yet the threads that its devices need.

    Also for devices made by ``XLA_FLAGS`` or ``jax_num_cpu_devices``. Everything in Replicax that
    starts JAX calls this first; it does nothing when JAX runs or the CPU is one device.
    """
    if has_started():
        return
    num_devices = cpu_client.num_configured_cpu_devices()
    if num_devices < 2:
        return
    num_threads = THREADS_PER_CPU_DEVICE * num_devices
    if cpu_client.num_expected_client_threads(num_devices) < num_threads:
        os.environ[cpu_client.THREADS_VARIABLE] = str(num_threads)


def _divide_cpu(num_devices: int) -> None:
    jax.config.update("jax_num_cpu_devices", num_devices)
    prepare_cpu_backend()


def _check_num_devices(num_devices: int) -> None:
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(f"num_devices must be an integer of at least 1, got {num_devices!r}.")


def _check_kind(kind: str) -> str:
    if not isinstance(kind, str) or kind.upper() not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    return kind.upper()


def _check_not_started(function: str) -> None:
    if has_started():
        raise DeviceError(
            f"{function} came too late: JAX has started with {_existing()}. Call it first thing in "
            "the program, before any array, jax.devices() or strategy is made."
        )


# -- lists -------------------------------------------------------------------------------------


def local_devices() -> tuple[Device, ...]:
    """All devices of this process on JAX's default platform; starts JAX."""
    prepare_cpu_backend()
    return tuple(jax.local_devices())


def list_physical_devices(kind: str | None = None) -> tuple[PhysicalDevice, ...]:
    """The devices of this machine, before they are divided.

    The CPU is always one physical device. It and virtual devices are listed without starting JAX,
    so that they can be divided afterwards. So is the absence of an accelerator, if JAX was told to
    use other platforms or Linux shows no device file. Real accelerators are counted by JAX, which
    starts for it: on such a machine divide the CPU first.

    Args:
        kind: ``CPU``, ``GPU`` or ``TPU``; all if None.
    """
    kinds = KINDS if kind is None else (_check_kind(kind),)
    return tuple(
        PhysicalDevice(f"/physical_device:{k}:{i}", k)
        for k in kinds
        for i in range(_num_physical(k))
    )


def list_logical_devices(kind: str | None = None) -> tuple[LogicalDevice, ...]:
    """The devices of this process that programs run on; starts JAX.

    Where virtual devices stand for accelerators, the CPU is listed as the one device that such a
    machine has.

    Args:
        kind: ``CPU``, ``GPU`` or ``TPU``; all if None.
    """
    kinds = KINDS if kind is None else (_check_kind(kind),)
    counts = {k: len(_devices_of(k)) for k in kinds}
    if _machine.is_accelerated and "CPU" in counts:
        counts["CPU"] = 1
    return tuple(LogicalDevice(f"/device:{k}:{i}", k) for k in kinds for i in range(counts[k]))


def _num_physical(kind: str) -> int:
    if kind == "CPU":
        return 1
    if _machine.is_accelerated:
        return len(_machine.logical_per_physical) if kind == _machine.kind else 0
    if has_started() or _may_exist(kind):
        return len(_devices_of(kind))
    return 0


def _may_exist(kind: str) -> bool:
    platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    if platforms and not set(platforms.split(",")) & set(_PLATFORM_NAMES[kind]):
        return False
    return any(glob.glob(pattern) for pattern in _DEVICE_FILES[kind])


def _physical_index(device: PhysicalDevice) -> int:
    existing = list_physical_devices(device.device_type)
    if device not in existing:
        names = ", ".join(d.name for d in list_physical_devices())
        raise UnknownDeviceError(
            f"There is no physical device {device.name!r}. This machine has {names}."
        )
    return existing.index(device)


# -- names -------------------------------------------------------------------------------------


def device_kind(device: Device) -> str:
    """What kind of device it is called: ``CPU``, ``GPU`` or ``TPU``."""
    return _machine.kind if device.platform == "cpu" else device.platform.upper()


def device_name(device: Device) -> str:
    """The short name of a device, ``CPU:0`` or ``GPU:0``; that of another process has its task."""
    kind = device_kind(device)
    peers = [d for d in jax.devices(device.platform) if d.process_index == device.process_index]
    short = f"{kind}:{peers.index(device)}"
    if device.process_index != jax.process_index():
        return f"/task:{device.process_index}/device:{short}"
    return short


def resolve_device(spec: DeviceSpec) -> Device:
    """The device that `spec` names; starts JAX.

    Args:
        spec: A `jax.Device`, a `LogicalDevice`, or a string in one of the documented spellings:
            ``GPU:0``, ``gpu``, ``/gpu:0``, ``/device:GPU:0`` or
            ``/job:localhost/replica:0/task:0/device:GPU:0``.

    Raises:
        UnknownDeviceError: No device of this process has that name; the message lists those that
            exist. Also if `spec` is none of the above.
    """
    if isinstance(spec, jax.Device):
        return spec
    name = spec.name if isinstance(spec, LogicalDevice) else spec
    if not isinstance(name, str):
        raise UnknownDeviceError(
            f'A device is a string such as "GPU:0", a LogicalDevice or a jax.Device, got {spec!r} '
            f"of type {type(spec).__name__}."
        )
    match = _SPEC.fullmatch(name.strip())
    if match is None:
        raise UnknownDeviceError(
            f"{name!r} is not the name of a device. Write it like "
            f'"GPU:0" or "/device:GPU:0". This process has {_existing()}.'
        )
    _check_task(name, match)
    devices = _devices_of(match["kind"].upper())
    index = int(match["index"] or 0)
    if index >= len(devices):
        raise UnknownDeviceError(
            f"There is no device {name!r}. This process has {_existing()}.{_more_devices()}"
        )
    return devices[index]


def resolve_devices(specs: Sequence[DeviceSpec]) -> tuple[Device, ...]:
    """The devices that `specs` name, in that order; starts JAX.

    Raises:
        UnknownDeviceError: The list is empty, or one device instead of a list, or a device is
            unknown or named twice.
    """
    if isinstance(specs, str | jax.Device | LogicalDevice):
        shown = f"{specs!r}" if isinstance(specs, str) else f"one {type(specs).__name__}"
        raise UnknownDeviceError(f"devices must be a list, got {shown}. Write it in brackets.")
    if not isinstance(specs, Iterable):
        raise UnknownDeviceError(
            f"devices must be a list, got {specs!r}. Name them, as in ['CPU:0', 'CPU:1'], or leave "
            f"devices out to use all; this process has {_existing()}.{_more_devices()}"
        )
    resolved: dict[Device, DeviceSpec] = {}
    for spec in specs:
        device = resolve_device(spec)
        if device in resolved:
            raise UnknownDeviceError(
                f"devices names {device_name(device)} twice, as {_shown(resolved[device])} and as "
                f"{_shown(spec)}. Name each device once; this process has {_existing()}."
            )
        resolved[device] = spec
    if not resolved:
        raise UnknownDeviceError(
            f"devices is an empty list. Leave it out to use all devices; this process has "
            f"{_existing()}."
        )
    return tuple(resolved)


def _shown(spec: DeviceSpec) -> str:
    return repr(device_name(spec) if isinstance(spec, jax.Device) else spec)


def _check_task(name: str, match: re.Match[str]) -> None:
    if match["replica"] in (None, "0"):
        if match["task"] is None or (match["job"] == "localhost" and match["task"] == "0"):
            return
        prepare_cpu_backend()
        if int(match["task"]) == jax.process_index():
            return
    raise UnknownDeviceError(
        f"{name!r} is not a device of this process, which is replica 0 of task "
        f"{jax.process_index()} and has {_existing()}."
    )


def _devices_of(kind: str) -> tuple[Device, ...]:
    """The devices of this process that names of `kind` refer to; starts JAX."""
    prepare_cpu_backend()
    if _machine.is_accelerated and kind == _machine.kind:
        return tuple(jax.local_devices(backend="cpu"))
    try:
        return tuple(jax.local_devices(backend=kind.lower()))
    except RuntimeError:  # JAX knows no such platform here
        return ()


def _more_devices() -> str:
    """A sentence for who has one CPU device, and expects more."""
    if len(_devices_of(_machine.kind)) > 1 or jax.default_backend() != "cpu":
        return ""
    return " For 8 virtual devices call rx.set_virtual_devices(8) at the start of the program."


def _existing() -> str:
    kinds = dict.fromkeys((_machine.kind, jax.default_backend().upper(), *KINDS))
    found = [(kind, len(_devices_of(kind))) for kind in kinds]
    return ", ".join(
        f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        for kind, count in found
        if count
    )
