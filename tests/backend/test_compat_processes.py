"""The private JAX APIs for several processes; see `test_compat`."""

from tests.backend.fresh_process import run_fresh


def test_a_process_joins_a_service_that_another_one_has_and_both_may_go():
    run_fresh(
        """
        from replicax.backend import compat
        from replicax.cluster.addresses import free_port
        address = f"127.0.0.1:{free_port()}"
        assert compat.coordination_client() is None
        service = compat.start_coordination_service(
            address, 1, heartbeat_seconds=10, shutdown_seconds=5
        )
        compat.connect_to_coordination(address, 1, 0, heartbeat_seconds=10, start_seconds=30)
        client = compat.coordination_client()
        client.key_value_set("key", "value")
        assert client.key_value_try_get("key") == "value"
        compat.start_preemption_service()
        compat.start_preemption_service()  # once is enough
        import os, signal
        os.kill(os.getpid(), signal.SIGTERM)
        import jax
        assert (jax.process_index(), jax.process_count()) == (0, 1)
        compat.leave_coordination()
        compat.forget_coordination()
        assert compat.coordination_client() is None
        service.shutdown()
        """
    )
