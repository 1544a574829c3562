"""Compiled programs are kept from one process to the next."""

import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import replicax as rx
from conftest import COMPILATION_CACHE

PROGRAM = """
import sys
import jax
import numpy as np
import replicax as rx

hits = []
jax.monitoring.register_event_listener(
    lambda event, **kwargs: hits.append(event) if event.endswith("cache_hits") else None
)
rx.set_virtual_devices(2)
rx.set_compilation_cache(sys.argv[1])
strategy = rx.MirroredStrategy()
with strategy.scope():
    w = rx.Variable(np.ones(3, np.float32))

@rx.function
def step(x):
    total = strategy.run(lambda x: rx.get_replica_context().all_reduce("SUM", x.sum()), (x,))
    w.assign(w + total)
    return total

hits.clear()
print(float(step(strategy.distribute_batch(np.ones(4, np.float32)))), len(hits))
"""


@pytest.fixture
def settings():
    """Puts the settings of the test run back."""
    yield
    for name, value in COMPILATION_CACHE.items():
        jax.config.update(name, value)
    rx.set_compilation_cache(COMPILATION_CACHE["jax_compilation_cache_dir"])


def test_a_second_process_finds_the_programs_of_the_first(tmp_path):
    lines = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "cache")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout.split())
    assert lines[0] == ["4.0", "0"]
    assert lines[1][0] == "4.0"
    assert int(lines[1][1]) > 0


def test_it_can_be_set_after_programs_have_been_compiled_and_turned_off_again(tmp_path, settings):
    jax.jit(lambda x: x + 1.25)(np.ones(3, np.float32))
    rx.set_compilation_cache(tmp_path)
    jax.jit(lambda x: x * 3.125)(np.ones(3, np.float32))
    kept = sorted(tmp_path.iterdir())
    assert kept
    rx.set_compilation_cache(None)
    jax.jit(lambda x: x * 4.125)(np.ones(3, np.float32))
    assert sorted(tmp_path.iterdir()) == kept


def test_a_file_is_refused(tmp_path):
    path: pathlib.Path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ValueError, match=r"which is a file\. Pass a directory"):
        rx.set_compilation_cache(path)
