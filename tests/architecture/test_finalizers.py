"""What runs when the garbage collector finds an object must not make JAX arrays.

JAX notes the Python stack for each new array in memory of the thread. If the collector runs in the
middle of that, and a finalizer makes another array, code objects lose references that somebody
holds, and some time later the process ends.
"""

from tests.backend.fresh_process import run_fresh


def test_a_variable_may_go_in_the_middle_of_any_operation():
    run_fresh(
        """
        import gc
        import sys

        import jax.numpy as jnp

        import replicax as rx
        from replicax.engine.storage import Storage

        rx.set_virtual_devices(2)
        strategy = rx.MirroredStrategy()
        code = Storage.component.__code__
        before = sys.getrefcount(code)
        x = jnp.ones(3)

        def deep(depth, fn):
            return fn() if depth == 0 else deep(depth - 1, fn)

        for number in range(200):
            with strategy.scope():
                v = rx.Variable(1.0)
            views = strategy.experimental_local_results(v)
            cycle = [v]
            cycle.append(cycle)  # so that only the collector finds it
            gc.disable()
            add = lambda: x + 1
            gc.set_threshold(gc.get_count()[0] + number % 40)
            del v, cycle
            gc.enable()
            deep(20, add)  # each frame that JAX looks at may start the collector
            gc.set_threshold(700)
            assert sys.getrefcount(code) >= before, number
            assert [float(view) for view in views] == [1.0, 1.0]
        """
    )
