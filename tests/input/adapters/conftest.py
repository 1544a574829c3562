"""Chooses the backend of Keras, before anything imports it."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
