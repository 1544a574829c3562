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


def test_a_process_learns_that_another_one_has_disconnected():
    run_fresh(
        """
        import subprocess, sys, time
        from replicax.backend import compat
        from replicax.cluster.addresses import free_port
        address = f"127.0.0.1:{free_port()}"
        service = compat.start_coordination_service(
            address, 2, heartbeat_seconds=100, shutdown_seconds=5
        )
        other = subprocess.Popen([sys.executable, "-c", f'''if True:
            import sys
            from replicax.backend import compat
            compat.connect_to_coordination(
                {address!r}, 2, 1, heartbeat_seconds=100, start_seconds=30
            )
            sys.stdin.read()
            compat.leave_coordination()
            compat.forget_coordination()
        '''], stdin=subprocess.PIPE)
        compat.connect_to_coordination(address, 2, 0, heartbeat_seconds=100, start_seconds=30)
        import threading
        waiting = threading.Thread(target=compat.await_departures, args=(0, [1]))
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive()
        other.stdin.close()
        waiting.join(30.0)
        assert not waiting.is_alive()
        assert other.wait() == 0
        compat.leave_coordination()
        compat.forget_coordination()
        """
    )
