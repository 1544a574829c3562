"""The contract suite of strategies on several workers: every worker runs it, all in step."""

import pathlib

import pytest

from tests.multiprocess.clusters import EACH_LAYOUT, LAYOUTS, require_success, run_workers
from tests.tiers import full_only

FILES = sorted(
    path.relative_to(pathlib.Path(__file__).parents[2]).as_posix()
    for path in (pathlib.Path(__file__).parents[1] / "contracts").glob("test_*.py")
)
GROUPS = {f"part {number}": FILES[number::4] for number in range(4)}
SECONDS = 900  # on a busy machine; it takes a minute

VARIABLES = {
    "REPLICAX_TEST_CLUSTER": "1",
    "JAX_TRACEBACK_FILTERING": "off",  # it takes a seventh of the time where errors are the rule
}


@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", ["part 0", *map(full_only, list(GROUPS)[1:])])
@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_every_contract_holds_on_several_workers(layout, group, is_full, tmp_path):
    tier = ["--full"] if is_full else []
    ended = run_workers(
        ["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *tier, *GROUPS[group]],
        *LAYOUTS[layout],
        tmp_path,
        seconds=SECONDS,
        **VARIABLES,
    )
    require_success(ended)
    for worker in ended:
        assert " passed" in worker.output
        assert "skipped" not in worker.output
