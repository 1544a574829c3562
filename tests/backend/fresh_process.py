"""Runs Python source in a process of its own, for what must happen before JAX starts."""

import os
import pathlib
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[2]

# What this test process has set up for itself, and the fresh one must not inherit.
SETUP_VARIABLES = ("NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS")


def run_fresh(source: str, *, timeout: float = 300.0, **variables: str) -> str:
    """Returns what `source` prints; fails with its stderr if it does not exit cleanly."""
    kept = {name: v for name, v in os.environ.items() if name not in SETUP_VARIABLES}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = kept | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | variables
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        stderr = (expired.stderr or b"").decode(errors="replace")
        raise AssertionError(f"no end after {timeout} s; stderr:\n{stderr[-3000:]}") from None
    assert done.returncode == 0, f"exit code {done.returncode}; stderr:\n{done.stderr[-3000:]}"
    return done.stdout
