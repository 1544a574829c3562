"""Fixtures of the contract suite: one test, every strategy, every executor."""

import pytest

from replicax.core import notices
from tests.contracts.executors import EXECUTORS
from tests.contracts.strategies import STRATEGIES, mirrored

MANY = {name: factory for name, factory in STRATEGIES.items() if factory().num_replicas_in_sync > 1}

IN_PLACE = {
    name: factory
    for name, factory in STRATEGIES.items()
    if factory().extended.parameter_devices == factory().extended.worker_devices
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    """Every strategy of the table."""
    return STRATEGIES[request.param]()


@pytest.fixture(params=[name for name in STRATEGIES if name != "default"])
def distributed(request):
    """Every strategy but the default one, which counts as none."""
    return STRATEGIES[request.param]()


@pytest.fixture(params=MANY)
def many(request):
    """Every strategy of the table that has more than one replica."""
    return MANY[request.param]()


@pytest.fixture(params=IN_PLACE)
def in_place(request):
    """Every strategy whose variables are where its replicas run, so that nothing is moved."""
    return IN_PLACE[request.param]()


@pytest.fixture
def two():
    """Two replicas, for rules that no strategy changes."""
    return mirrored(2)


@pytest.fixture(params=EXECUTORS)
def execute(request):
    """Every executor: ``execute(strategy, fn, args=(), kwargs=None)``."""
    return EXECUTORS[request.param]


@pytest.fixture(params=[name for name, row in EXECUTORS.items() if row.is_compiled])
def compiled(request):
    """Every executor that compiles."""
    return EXECUTORS[request.param]


@pytest.fixture
def eager():
    """The executor that calls the function once per replica."""
    return EXECUTORS["eager"]


@pytest.fixture
def branch_notice(request):
    """Lets the notice about branching at a line of the test's file be shown again."""
    for line in range(1, 500):
        notices.forget(("branch on replica id", f"{request.path}:{line}"))
