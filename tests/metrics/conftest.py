"""Fixtures of the metric tests: every executor of the contract suite."""

import pytest

from tests.contracts.executors import EXECUTORS


@pytest.fixture(params=EXECUTORS)
def execute(request):
    """Every executor: ``execute.prepare(strategy, fn)`` gives a step."""
    return EXECUTORS[request.param]
