"""The random streams of NNX under a strategy."""

import numpy as np
from flax import nnx

import replicax as rx


def test_replica_0_draws_the_numbers_of_one_device():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    ones = np.ones(64, np.float32)
    mask = strategy.run(rx.function(lambda: dropout(ones))).values[0]
    np.testing.assert_array_equal(mask, nnx.Dropout(0.5, rngs=nnx.Rngs(0))(ones))
    assert int(dropout.rngs.count[...]) == 1
