"""The private JAX APIs for several processes; see `test_compat`."""

from tests.backend.fresh_process import run_fresh


def test_a_process_joins_a_service_that_another_one_has_and_both_may_go():
    run_fresh(
        """
        from replicax.jax_internals.processes import (
            connect_to_coordination,
            coordination_client,
            forget_coordination,
            leave_coordination,
            start_coordination_service,
        )
        from replicax.cluster.addresses import free_port
        address = f"127.0.0.1:{free_port()}"
        assert coordination_client() is None
        service = start_coordination_service(
            address, 1, heartbeat_seconds=10, shutdown_seconds=5
        )
        connect_to_coordination(address, 1, 0, heartbeat_seconds=10, start_seconds=30)
        client = coordination_client()
        client.key_value_set("key", "value")
        assert client.key_value_try_get("key") == "value"
        import jax
        assert (jax.process_index(), jax.process_count()) == (0, 1)
        leave_coordination()
        forget_coordination()
        assert coordination_client() is None
        service.shutdown()
        """
    )


def test_gloo_listens_at_the_address_that_it_is_given():
    run_fresh(
        """
        import os, pathlib, jax
        from replicax.jax_internals.processes import (
            connect_to_coordination,
            forget_coordination,
            leave_coordination,
            start_coordination_service,
            use_gloo_at,
        )
        from replicax.cluster.addresses import free_port
        address = f"127.0.0.1:{free_port()}"
        service = start_coordination_service(
            address, 1, heartbeat_seconds=100, shutdown_seconds=5
        )
        connect_to_coordination(address, 1, 0, heartbeat_seconds=100, start_seconds=30)
        use_gloo_at("127.0.0.3")
        jax.devices()
        files = list(pathlib.Path("/proc/self/fd").iterdir())
        own = {os.readlink(file) for file in files if file.is_symlink()}
        listening = [line.split() for line in open("/proc/net/tcp") if line.split()[3] == "0A"]
        hosts = [row[1].partition(":")[0] for row in listening if f"socket:[{row[9]}]" in own]
        assert hosts == ["0300007F"], hosts
        leave_coordination()
        forget_coordination()
        """
    )
