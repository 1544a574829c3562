"""The private tables of JAX by which functions of `jax.lax` take objects of ours."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.jax_internals.operands import accept


class Held:
    def __init__(self, value):
        self.value = value


def test_functions_of_lax_take_an_accepted_object_as_its_array():
    accept(Held, lambda held: held.value)
    held = Held(jnp.arange(3.0))
    np.testing.assert_array_equal(lax.add(held, jnp.ones(3)), [1, 2, 3])
    held.value = jnp.zeros(3)  # its array is that of the moment
    np.testing.assert_array_equal(lax.neg(held), np.zeros(3))
