"""Faults on Ray: see `faults`."""

import pytest

from tests.parameter_server.faults import NOTICED_SECONDS, run_one

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("seed", range(10))
def test_killed_and_stopped_processes_change_no_number(ray_session, seed):
    figures = run_one(seed)
    assert figures["faults"] == 12
    assert figures["slowest notice"] < NOTICED_SECONDS, figures
