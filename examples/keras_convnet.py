"""A Keras ConvNet that learns digits on 8 replicas, with Keras's own progress bar.

The model is created in the scope of a strategy; the rest is Keras as ever. Run it with:
python examples/keras_convnet.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import replicax as rx

NUM_REPLICAS = 8


def digits():
    """Images of 8 x 8 pixels and the digits they show, to train with and to test."""
    data = load_digits()
    images = (data.images / 16.0)[..., None].astype(np.float32)
    return (images[:1500], data.target[:1500]), (images[1500:], data.target[1500:])


def convnet():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def train(strategy, *, epochs=5, verbose="auto"):
    """The model and its accuracy on images that it has not seen."""
    train_data, test_data = digits()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = convnet()
        model.compile(
            keras.optimizers.Adam(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(*train_data, batch_size=128, epochs=epochs, verbose=verbose)
    _, accuracy = model.evaluate(*test_data, batch_size=128, verbose=0)
    return model, accuracy


if __name__ == "__main__":
    rx.set_virtual_devices(NUM_REPLICAS)  # before JAX starts; leave it out where there are GPUs
    strategy = rx.MirroredStrategy()
    print(strategy.describe())
    _, accuracy = train(strategy)
    print(f"accuracy on new images: {accuracy:.3f}")
