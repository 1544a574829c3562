"""An older JAX is refused with a sentence; there is no newest one."""

import re
import tomllib

import pytest

from replicax.core import jax_version
from tests.backend.fresh_process import ROOT, run_fresh


@pytest.mark.parametrize("version", [(0, 10, 0), (0, 10, 2), (0, 11, 0), (1, 0, 0)])
def test_the_lowest_version_and_all_after_it_are_accepted(version):
    jax_version.check(version)


@pytest.mark.parametrize("version", [(0, 9, 2), (0, 4, 30)])
def test_an_older_version_is_named_with_what_to_install(version):
    shown = ".".join(map(str, version))
    text = f"JAX {shown} is installed. Install another one with: pip install 'jax>=0.10.0'"
    with pytest.raises(ImportError, match=re.escape(text)):
        jax_version.check(version)


def test_the_check_comes_before_what_would_fail():
    output = run_fresh(
        """
        import jax
        jax.__version_info__ = (0, 9, 0)
        import jax._src.core
        del jax._src.core.trace_ctx  # as if JAX had moved it
        try:
            import replicax
        except ImportError as error:
            print(error)
        """
    )
    assert "JAX 0.9.0 is installed" in output


def test_the_lowest_version_is_the_declared_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (declared,) = [line for line in project["dependencies"] if line.startswith("jax")]
    (lowest,) = re.fullmatch(r"jax>=([\d.]+)", declared).groups()
    assert tuple(map(int, lowest.split("."))) == jax_version.LOWEST
