"""Fixtures of the tests of `StrategyExtended`: every strategy, on 1, 2, 3 and 8 replicas."""

import pytest

import replicax as rx
from tests.contracts.executors import EXECUTORS
from tests.contracts.strategies import STRATEGIES, central, mirrored


def _central_8():
    """Eight devices are all there are, so that one of them has the variables too."""
    return rx.experimental.CentralStorageStrategy([f"CPU:{i}" for i in range(8)], "CPU:0")


EXTENDED = STRATEGIES | {"central_1": lambda: central(1), "central_8": _central_8}
MANY = [name for name, make in EXTENDED.items() if make().num_replicas_in_sync > 1]


@pytest.fixture(params=EXTENDED)
def strategy(request):
    """Every strategy of the table."""
    return EXTENDED[request.param]()


@pytest.fixture(params=[name for name in EXTENDED if name != "default"])
def distributed(request):
    """Every strategy but the default one."""
    return EXTENDED[request.param]()


@pytest.fixture(params=MANY)
def many(request):
    """Every strategy of the table that has more than one replica."""
    return EXTENDED[request.param]()


@pytest.fixture
def two():
    """Two replicas, for rules that no strategy changes."""
    return mirrored(2)


@pytest.fixture(params=EXECUTORS)
def execute(request):
    """Every executor: ``execute(strategy, fn, args=(), kwargs=None)``."""
    return EXECUTORS[request.param]


@pytest.fixture(params=["eager", "function"])
def across(request):
    """Calls cross-replica code as it is, or compiled: ``across(fn, *args)``."""
    if request.param == "eager":
        return lambda fn, *args: fn(*args)
    return lambda fn, *args: rx.function(fn)(*args)
