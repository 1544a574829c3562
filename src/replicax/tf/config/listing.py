"""The lists of devices with the documented argument name; they come as lists."""

from __future__ import annotations

from replicax.backend import devices as _devices

__all__ = ["list_logical_devices", "list_physical_devices"]


def list_physical_devices(device_type: str | None = None) -> list[_devices.PhysicalDevice]:
    """The devices of this machine, before they are divided.

    Args:
        device_type: ``CPU``, ``GPU`` or ``TPU``; all if None.

    Returns:
        The devices, the CPU first.

    Example:
        >>> list_physical_devices("CPU")
        [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    return list(_devices.list_physical_devices(device_type))


def list_logical_devices(device_type: str | None = None) -> list[_devices.LogicalDevice]:
    """The devices that programs run on; starts JAX.

    Args:
        device_type: ``CPU``, ``GPU`` or ``TPU``; all if None.

    Returns:
        The devices.

    Example:
        >>> list_logical_devices("CPU")[0].name
        '/device:CPU:0'
    """
    return list(_devices.list_logical_devices(device_type))
