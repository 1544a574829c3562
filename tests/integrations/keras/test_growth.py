"""Training goes on without compiling again, and without taking more memory."""

import traceback
from collections.abc import Iterator

import jax
import pytest

from tests.backend.fresh_process import run_fresh
from tests.integrations.keras.features import fitted
from tests.integrations.keras.problem import FIT, X, Y, mirrored, mlp


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Who has something compiled while the test runs."""
    callers: list[str] = []

    def listen(name: str, *args: object, **options: object) -> None:
        if name.endswith("backend_compile_duration"):
            callers.append("".join(traceback.format_stack()))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield callers
    jax.monitoring.clear_event_listeners()


def test_a_second_fit_compiles_nothing(compiled: list[str]) -> None:
    with mirrored(2).scope():
        model, _ = fitted(mlp(), compiled={"metrics": ["mae"]}, validation_data=(X, Y))
    assert compiled
    compiled.clear()
    model.fit(X, Y, validation_data=(X, Y), **FIT)
    assert compiled == []


FIFTY_EPOCHS = """
    import gc, os, sys
    import jax, keras, numpy as np
    import replicax as rx

    rx.set_virtual_devices(2)
    x = np.random.default_rng(0).normal(size=(512, 256)).astype("float32")
    compiled, blocks, resident = [], [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *args, **kw: compiled.append(name) if "backend_compile" in name else None
    )

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch % 10 == 9:
                gc.collect()
                blocks.append(sys.getallocatedblocks())
                with open("/proc/self/statm") as file:
                    resident.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            if epoch == 9:
                compiled.clear()

    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential(
            [
                keras.Input((256,)),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(2),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    model.fit(
        x, x[:, :2], batch_size=64, epochs=60, verbose=0,
        validation_data=(x, x[:, :2]), callbacks=[Watch()],
    )
    print(len(compiled), int(np.median(np.diff(blocks))), resident[-1] - resident[0])
"""


@pytest.mark.slow
def test_fifty_epochs_compile_nothing_and_keep_nothing() -> None:
    num_compiled, blocks, grown = map(int, run_fresh(FIFTY_EPOCHS).split())
    assert num_compiled == 0
    assert blocks < 500  # of Python's memory in ten epochs: the history and the names of its steps
    assert grown < 4e6  # the batches of one epoch are a megabyte
