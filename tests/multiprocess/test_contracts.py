"""The contract suite of strategies on several workers: every worker runs it, all in step."""

import pathlib

import pytest

from tests.multiprocess.clusters import require_success, run_workers

FILES = sorted(
    path.relative_to(pathlib.Path(__file__).parents[2]).as_posix()
    for path in (pathlib.Path(__file__).parents[1] / "contracts").glob("test_*.py")
)
GROUPS = {f"{i + 1} of 4": FILES[i::4] for i in range(4)}
LAYOUTS = {"2 workers, 2 devices": (2, 2), "3 workers, 1 device": (3, 1)}
SECONDS = 900  # on a busy machine; it takes a minute


@pytest.mark.multiprocess
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_contract_holds_on_several_workers(layout, group, tmp_path):
    ended = run_workers(
        ["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *GROUPS[group]],
        *LAYOUTS[layout],
        tmp_path,
        seconds=SECONDS,
        environment={"REPLICAX_TEST_CLUSTER": "1"},
    )
    require_success(ended)
    for worker in ended:
        assert " passed" in worker.output
        assert "skipped" not in worker.output
