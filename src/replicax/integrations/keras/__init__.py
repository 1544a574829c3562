"""Keras 3 under a strategy: models, `fit`, custom loops and saving.

Importing this package connects Keras with Replicax; entering a strategy's scope imports it if
Keras has been imported. A Keras model that is created in the scope is then distributed. Needs
Keras 3.12 or newer on its JAX backend.

>>> import os
>>> os.environ.setdefault("KERAS_BACKEND", "jax")
'jax'
>>> import keras
>>> import numpy as np
>>> import replicax as rx
>>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
...     model.compile("sgd", "mse")
>>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)

What is changed in Keras is in the table in `hooks`.
"""

import keras as _keras

from replicax.integrations.keras.version import require as _require

_require(_keras.__version__)  # what the other modules import is where Keras has it since then

from replicax.integrations.keras.hooks import install as _install  # noqa: E402
from replicax.integrations.keras.ownership import distribute  # noqa: E402

__all__ = ["distribute"]

_install()
