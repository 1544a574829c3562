"""Devices by name, in lists, and configured before JAX starts."""

import jax
import pytest

from replicax.backend import devices
from replicax.core.errors import DeviceError, ReplicaxError, UnknownDeviceError
from tests.backend.fresh_process import run_fresh

SPELLINGS = [
    ("CPU:0", 0),
    ("cpu:3", 3),
    ("CPU", 0),
    ("cpu", 0),
    ("/cpu:1", 1),
    ("/CPU:1", 1),
    ("device:CPU:2", 2),
    ("/device:CPU:2", 2),
    ("/device:cpu:7", 7),
    ("/task:0/device:CPU:1", 1),
    ("/job:worker/replica:0/task:0/device:CPU:4", 4),
    ("/job:localhost/replica:0/task:0/device:CPU:4", 4),
    (devices.LogicalDevice("/device:CPU:5", "CPU"), 5),
]


@pytest.mark.parametrize(("spec", "index"), SPELLINGS, ids=[str(s) for s, _ in SPELLINGS])
def test_every_documented_spelling_names_the_device(spec, index):
    assert devices.resolve_device(spec) == jax.devices()[index]


def test_a_jax_device_is_its_own_name():
    assert devices.resolve_device(jax.devices()[6]) is jax.devices()[6]


def test_the_short_name_of_a_device_names_it_again():
    for device in jax.devices():
        assert devices.resolve_device(devices.device_name(device)) == device
    assert devices.device_name(jax.devices()[3]) == "CPU:3"


@pytest.mark.parametrize("name", ["CPU:8", "GPU:0", "/device:TPU:1", "FPGA:0", "/cpu:99"])
def test_an_unknown_name_is_refused_with_the_names_that_exist(name):
    with pytest.raises(UnknownDeviceError, match=rf"no device '{name}'.* has CPU:0 to CPU:7\."):
        devices.resolve_device(name)


@pytest.mark.parametrize("name", ["", "0", "CPU:x", "CPU:-1", "/device:", "CPU:0:1", "CPU 0"])
def test_what_is_not_a_name_is_refused_with_an_example(name):
    with pytest.raises(UnknownDeviceError, match=r'not the name of a device.*"GPU:0".*CPU:7'):
        devices.resolve_device(name)


@pytest.mark.parametrize(
    "name", ["/job:worker/task:1/device:CPU:0", "/job:worker/replica:1/task:0/device:CPU:0"]
)
def test_a_device_of_another_process_is_refused(name):
    with pytest.raises(UnknownDeviceError, match=r"not a device of this process.* of task 0 and"):
        devices.resolve_device(name)


def test_something_else_than_a_name_is_refused_with_its_type():
    with pytest.raises(UnknownDeviceError, match=r'string such as "GPU:0".*got 3 of type int'):
        devices.resolve_device(3)


def test_a_list_keeps_its_order():
    found = devices.resolve_devices(["CPU:2", jax.devices()[0], "/cpu:1"])
    assert found == (jax.devices()[2], jax.devices()[0], jax.devices()[1])


def test_an_empty_list_is_refused():
    with pytest.raises(UnknownDeviceError, match=r"empty list.*CPU:0 to CPU:7"):
        devices.resolve_devices([])


def test_a_device_named_twice_is_refused_in_both_spellings():
    with pytest.raises(UnknownDeviceError, match="CPU:1 twice, as 'cpu:1' and as '/device:CPU:1'"):
        devices.resolve_devices(["CPU:0", "cpu:1", "/device:CPU:1"])


def test_an_unknown_device_in_a_list_is_refused():
    with pytest.raises(UnknownDeviceError, match=r"no device 'GPU:0'.*CPU:0 to CPU:7"):
        devices.resolve_devices(["GPU:0", "GPU:1"])


def test_one_device_instead_of_a_list_is_refused():
    with pytest.raises(UnknownDeviceError, match=r"must be a list, got 'CPU:0'\. Write it"):
        devices.resolve_devices("CPU:0")
    with pytest.raises(UnknownDeviceError, match="must be a list, got one"):
        devices.resolve_devices(jax.devices()[0])
    with pytest.raises(
        UnknownDeviceError, match=r"must be a list, got 8\. Name them, as in \['CPU"
    ):
        devices.resolve_devices(8)


def test_on_a_machine_with_one_device_the_errors_name_virtual_devices():
    source = """
        import replicax as rx
        for devices in (["CPU:0", "CPU:1"], 8):
            try:
                rx.MirroredStrategy(devices)
            except ValueError as error:
                print(error)
    """
    lines = run_fresh(source).splitlines()
    assert len(lines) == 2
    assert all(
        "has CPU:0. For 8 virtual devices call rx.set_virtual_devices(8)" in x for x in lines
    )


def test_local_devices_are_all_devices_of_this_process():
    assert devices.local_devices() == tuple(jax.local_devices())


def test_the_errors_are_also_the_built_in_ones():
    assert {ReplicaxError, ValueError} < set(UnknownDeviceError.__mro__)
    assert {ReplicaxError, RuntimeError} < set(DeviceError.__mro__)


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_devices", [0, -1, 2.0, "2", True, None])
def test_a_number_of_devices_that_is_none_is_refused(num_devices):
    with pytest.raises(ValueError, match=f"integer of at least 1, got {num_devices!r}"):
        devices.set_virtual_devices(num_devices)


@pytest.mark.parametrize("kind", ["FPGA", "", None, 3])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(ValueError, match=f"kind must be one of CPU, GPU, TPU, got {kind!r}"):
        devices.set_virtual_devices(2, kind)
    if kind is not None:
        with pytest.raises(ValueError, match="kind must be one of CPU, GPU, TPU"):
            devices.list_physical_devices(kind)


def test_devices_cannot_be_configured_once_jax_has_started():
    jax.devices()
    with pytest.raises(DeviceError, match=r"came too late: JAX has started with CPU:0 to CPU:7\. "):
        devices.set_virtual_devices(4)
    cpu = devices.list_physical_devices("CPU")[0]
    with pytest.raises(DeviceError, match="Call it first thing in the program"):
        devices.set_logical_device_configuration(cpu, [devices.LogicalDeviceConfiguration()])


def test_a_machine_lists_one_physical_cpu_and_its_logical_devices():
    assert devices.list_physical_devices() == (
        devices.PhysicalDevice("/physical_device:CPU:0", "CPU"),
    )
    assert devices.list_physical_devices("GPU") == ()
    logical = devices.list_logical_devices("cpu")
    assert [d.name for d in logical] == [f"/device:CPU:{i}" for i in range(8)]
    assert devices.list_logical_devices("TPU") == ()
    assert devices.resolve_devices(logical) == tuple(jax.devices())


def test_importing_configures_and_starts_nothing():
    run_fresh(
        """
        import os
        before = dict(os.environ)
        from replicax.backend import cpu_client, devices, runahead
        from replicax.jax_internals.processes import has_started
        assert dict(os.environ) == before
        assert not has_started()
        """
    )


def test_virtual_cpu_devices_come_with_threads_for_all_of_them():
    run_fresh(
        """
        import os
        from replicax.backend import cpu_client, devices, runahead
        from replicax.jax_internals.processes import has_started
        devices.set_virtual_devices(2)
        devices.set_virtual_devices(3)  # the last call counts
        assert not has_started()
        assert [devices.device_name(d) for d in devices.local_devices()] == [
            "CPU:0", "CPU:1", "CPU:2"]
        assert cpu_client.num_client_threads(3) >= 6
        assert not runahead.is_pool_small()
        assert runahead.RUN_AHEAD.limit == runahead.MAX_IN_FLIGHT
        """
    )


def test_virtual_gpus_answer_to_gpu_and_cpu_names():
    run_fresh(
        """
        from replicax.backend import cpu_client, devices
        from replicax.jax_internals.processes import has_started
        devices.set_virtual_devices(4, kind="gpu")
        gpus = devices.list_physical_devices("GPU")
        assert [d.name for d in gpus] == [f"/physical_device:GPU:{i}" for i in range(4)]
        assert len(devices.list_physical_devices()) == 5
        assert not has_started()
        local = devices.local_devices()
        assert [devices.device_name(d) for d in local] == [f"GPU:{i}" for i in range(4)]
        assert devices.resolve_devices([f"/gpu:{i}" for i in range(4)]) == local
        assert devices.resolve_device("/device:GPU:3") == devices.resolve_device("CPU:3")
        names = [d.name for d in devices.list_logical_devices()]
        assert names == ["/device:CPU:0"] + [f"/device:GPU:{i}" for i in range(4)], names
        for specs, text in (
            (["GPU:0", "CPU:0"], "names GPU:0 twice, as 'GPU:0' and as 'CPU:0'"),
            (["GPU:4"], "has GPU:0 to GPU:3, CPU:0 to CPU:3."),
            (["TPU:0"], "There is no device 'TPU:0'"),
        ):
            try:
                devices.resolve_devices(specs)
            except ValueError as error:
                assert text in str(error), error
            else:
                raise AssertionError(specs)
        """
    )


def test_the_documented_way_to_divide_a_cpu_works():
    run_fresh(
        """
        from replicax.backend import cpu_client, devices
        from replicax.jax_internals.processes import has_started
        cpu = devices.list_physical_devices("CPU")[0]
        assert not devices.list_physical_devices("GPU")
        assert not has_started()
        one = devices.LogicalDeviceConfiguration()
        for bad, text in (([], "logical_devices is empty"),
                          ([devices.LogicalDeviceConfiguration(memory_limit=10)], "memory limit")):
            try:
                devices.set_logical_device_configuration(cpu, bad)
            except ValueError as error:
                assert text in str(error), error
            else:
                raise AssertionError(bad)
        devices.set_logical_device_configuration(cpu, [one, one])
        assert devices.list_physical_devices() == (cpu,)
        assert len(devices.list_logical_devices("CPU")) == 2
        assert cpu_client.num_client_threads(2) >= 4
        """
    )


def test_a_virtual_gpu_can_be_divided_and_a_real_one_cannot():
    run_fresh(
        """
        from replicax.backend import devices
        one = devices.LogicalDeviceConfiguration(memory_limit=1024)
        try:
            devices.set_logical_device_configuration(
                devices.PhysicalDevice("/physical_device:GPU:0", "GPU"), [one, one])
        except ValueError as error:
            assert "no physical device '/physical_device:GPU:0'" in str(error), error
        else:
            raise AssertionError
        devices.set_virtual_devices(2, "GPU")
        gpus = devices.list_physical_devices("GPU")
        devices.set_logical_device_configuration(gpus[0], [one, one])
        assert devices.list_physical_devices("GPU") == gpus
        assert len(devices.list_logical_devices("GPU")) == 3
        """
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        {"JAX_NUM_CPU_DEVICES": "8"},
        {"JAX_NUM_CPU_DEVICES": "8", "NPROC": "3"},
    ],
    ids=["XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "low NPROC"],
)
def test_devices_made_without_replicax_get_their_threads_if_it_starts_jax(variables):
    run_fresh(
        """
        from replicax.backend import cpu_client, devices
        assert len(devices.local_devices()) == 8
        assert cpu_client.num_client_threads(8) >= 16
        """,
        **variables,
    )


def test_a_single_device_leaves_the_environment_alone():
    run_fresh(
        """
        import os
        from replicax.backend import devices
        before = dict(os.environ)
        assert len(devices.local_devices()) == 1
        assert dict(os.environ) == before
        """
    )
