"""Importing the package changes nothing in the process but ``sys.modules``.

Each check runs in a fresh interpreter, where JAX is imported first: what JAX
does on import is not ours to judge.
"""

import functools
import json
import subprocess
import sys

import pytest

from tests.architecture.source_tree import FACADE_MODULES, facades

OPTIONAL_PACKAGES = (
    *("click", "flatbuffers", "grain", "keras", "flax", "matplotlib", "optax", "orbax", "ray"),
    *("rich", "sklearn", "tensorboardX", "tensorflow", "torch"),
)
MODULES = [
    name
    for name in facades()
    if name in ("replicax", "replicax.tf", *(f"replicax.{m}" for m in FACADE_MODULES))
]

PROBE = """
import importlib, json, logging, os, sys, threading
import jax, jax.numpy

def handlers():
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    return {f"{l.name}: {h!r}" for l in loggers for h in getattr(l, "handlers", ())}

def state():
    return {
        "environment": {f"{k}={v}" for k, v in os.environ.items()},
        "handlers": handlers(),
        "threads": {t.name for t in threading.enumerate()},
        "packages": {name.partition(".")[0] for name in sys.modules},
    }

before = state()
importlib.import_module(sys.argv[1])
after = state()
changes = {key: sorted(before[key] ^ after[key]) for key in before}

# JAX refuses this setting once a backend has started.
try:
    jax.config.update("jax_num_cpu_devices", 3)
    changes["backend"] = []
except RuntimeError as error:
    changes["backend"] = [str(error)]
print(json.dumps(changes))
"""


@functools.cache
def _changes_by_importing(module: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, module],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("kind", ["backend", "environment", "handlers", "threads"])
def test_importing_leaves_the_process_as_it_was(module: str, kind: str):
    assert _changes_by_importing(module)[kind] == []


@pytest.mark.parametrize("module", MODULES)
def test_importing_loads_no_optional_package(module: str):
    assert set(_changes_by_importing(module)["packages"]).isdisjoint(OPTIONAL_PACKAGES)


def test_the_probe_sees_a_backend_that_starts(tmp_path, monkeypatch):
    (tmp_path / "starts_a_backend.py").write_text("import jax\njax.devices()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert _changes_by_importing("starts_a_backend")["backend"] != []


def test_the_help_of_the_command_loads_no_subcommand():
    probe = (
        "import sys\n"
        "from replicax.cli.main import main, SUBCOMMANDS\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(sorted(row.module for row in SUBCOMMANDS.values() if row.module in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
