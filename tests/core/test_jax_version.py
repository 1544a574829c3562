"""A JAX that is older or newer than what was tested is refused with a sentence."""

import re
import tomllib

import pytest

from replicax.core import jax_version
from tests.backend.fresh_process import ROOT, run_fresh


@pytest.mark.parametrize("version", [(0, 10, 0), (0, 10, 2), (0, 10, 9, 1)])
def test_the_lowest_version_and_those_like_it_are_accepted(version):
    jax_version.check(version)


@pytest.mark.parametrize("version", [(0, 9, 2), (0, 4, 30), (0, 11, 0), (0, 12, 0, 1), (1, 0, 0)])
def test_another_version_is_named_with_what_to_install(version):
    shown = ".".join(map(str, version))
    text = f"JAX {shown} is installed. Install another one with: pip install 'jax>=0.10.0,<0.11'"
    with pytest.raises(ImportError, match=re.escape(text)):
        jax_version.check(version)


@pytest.mark.parametrize("version", [(0, 9, 0), (0, 12, 0)])
def test_the_check_comes_before_what_would_fail(version):
    output = run_fresh(
        f"""
        import jax
        jax.__version_info__ = {version}
        import jax._src.core
        del jax._src.core.trace_ctx  # as if JAX had moved it
        try:
            import replicax
        except ImportError as error:
            print(error)
        """
    )
    assert f"JAX {'.'.join(map(str, version))} is installed" in output


def test_the_versions_are_the_declared_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (declared,) = [line for line in project["dependencies"] if line.startswith("jax")]
    found = re.fullmatch(r"jax>=([\d.]+),<([\d.]+)", declared).groups()
    lowest, too_new = (tuple(map(int, version.split("."))) for version in found)
    assert (lowest, too_new) == (jax_version.LOWEST, jax_version.TOO_NEW)
