"""What runs when the garbage collector finds an object must not make JAX arrays.

JAX notes the Python stack for each new array in memory of the thread. If the collector runs in the
middle of that, and a finalizer makes another array, code objects lose references that somebody
holds, and some time later the process ends.
"""

from tests.backend.fresh_process import run_fresh


def test_a_variable_in_a_pool_may_go_in_the_middle_of_any_operation():
    run_fresh(
        """
        import gc

        import jax.numpy as jnp
        import numpy as np

        import replicax as rx
        from replicax.variables.pool import MIN_MEMBERS, PooledStorage

        rx.set_virtual_devices(2)
        strategy = rx.MirroredStrategy()
        x = jnp.ones(3)

        def deep(depth, fn):
            return fn() if depth == 0 else deep(depth - 1, fn)

        for number in range(12):
            with strategy.scope():
                variables = [rx.Variable(np.full(2, 1.0 * i)) for i in range(MIN_MEMBERS)]

            @rx.function
            def step(variables=tuple(variables)):
                for variable in variables:
                    variable.assign(variable + 1.0)

            step()
            assert type(variables[3]._storage) is PooledStorage
            views = strategy.experimental_local_results(variables[3])
            kept = variables[4]
            cycle = [variables, step]
            cycle.append(cycle)  # so that only the collector finds it
            gc.disable()
            add = lambda: x + 1
            gc.set_threshold(gc.get_count()[0] + 3 * number % 40)
            del variables, step, cycle
            gc.enable()
            deep(20, add)  # each frame that JAX looks at may start the collector
            gc.set_threshold(700)
            gc.collect()
            assert [view.value.tolist() for view in views] == [[4.0, 4.0]] * 2
            assert kept.numpy().tolist() == [5.0, 5.0]
        """
    )


def test_a_variable_may_go_in_the_middle_of_any_operation():
    run_fresh(
        """
        import gc
        import sys

        import jax.numpy as jnp

        import replicax as rx
        from replicax.variables.storage import Storage

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
