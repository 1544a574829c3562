"""A JAX that is older or newer than what was tested is refused with a sentence."""

import re
import tomllib

import pytest

from replicax.core import jax_version
from tests.backend.fresh_process import ROOT, run_fresh


@pytest.mark.parametrize("version", [(0, 10, 0), (0, 10, 2), (0, 11, 1), (0, 12, 0, 1)])
def test_the_lowest_version_and_the_tested_ones_after_it_are_accepted(version):
    jax_version.check(version)


@pytest.mark.parametrize("version", [(0, 9, 2), (0, 4, 30), (0, 11, 2), (0, 13, 0), (1, 0, 0)])
def test_another_version_is_named_with_what_to_install(version):
    shown = ".".join(map(str, version))
    wanted = "pip install 'jax>=0.10.0,!=0.11.2,<0.13'"
    text = f"JAX {shown} is installed. Install another one with: {wanted}"
    with pytest.raises(ImportError, match=re.escape(text)):
        jax_version.check(version)


@pytest.mark.parametrize("version", [(0, 9, 0), (0, 13, 0)])
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
    found = re.fullmatch(r"jax>=([\d.]+),!=([\d.]+),<([\d.]+)", declared).groups()
    versions = [tuple(map(int, version.split("."))) for version in found]
    assert versions == [jax_version.LOWEST, jax_version.BROKEN, jax_version.TOO_NEW]
