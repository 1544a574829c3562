"""``tf.config``: the documented device set-up, in processes where JAX has not started."""

import pytest

import replicax as rx
import replicax.tf as tf
from tests.backend.fresh_process import run_fresh


def test_the_cpu_is_divided_into_logical_devices():
    run_fresh(
        """
        import replicax.tf as tf

        cpus = tf.config.list_physical_devices("CPU")
        assert [cpu.name for cpu in cpus] == ["/physical_device:CPU:0"]
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        logical = tf.config.list_logical_devices(device_type="CPU")
        assert [device.name for device in logical] == ["/device:CPU:0", "/device:CPU:1"]
        assert tf.distribute.MirroredStrategy(logical).num_replicas_in_sync == 2
        assert tf.distribute.MirroredStrategy().num_replicas_in_sync == 2
        """
    )


def test_a_virtual_gpu_is_divided_with_the_older_names():
    run_fresh(
        """
        import replicax
        replicax.set_virtual_devices(2, kind="GPU")
        import replicax.tf as tf

        gpus = tf.config.experimental.list_physical_devices("GPU")
        assert len(gpus) == 2
        limit = tf.config.experimental.VirtualDeviceConfiguration(memory_limit=1024)
        tf.config.experimental.set_virtual_device_configuration(gpus[0], [limit, limit])
        names = [device.name for device in tf.config.experimental.list_logical_devices("GPU")]
        assert names == ["/device:GPU:0", "/device:GPU:1", "/device:GPU:2"]
        assert tf.distribute.MirroredStrategy().num_replicas_in_sync == 3
        """
    )


def test_dividing_after_jax_has_started_is_refused():
    cpu = tf.config.list_physical_devices("CPU")[0]
    with pytest.raises(RuntimeError, match="set_logical_device_configuration came too late"):
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )


def test_functions_can_be_run_as_python():
    seen = []

    @tf.function
    def fn(x):
        seen.append(x)
        return x + 1.0

    fn(tf.constant(1.0))
    fn(tf.constant(1.0))
    assert len(seen) == 1
    tf.config.run_functions_eagerly(True)
    try:
        assert tf.config.functions_run_eagerly()
        assert rx.functions_run_eagerly()
        assert fn(tf.constant(1.0)) == 2.0
        assert len(seen) == 2
    finally:
        tf.config.run_functions_eagerly(False)
    assert not tf.config.functions_run_eagerly()
