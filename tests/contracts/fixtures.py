"""Fixtures that the contract suite and the tests of `StrategyExtended` share."""

import pytest

from tests.contracts.executors import EXECUTORS
from tests.contracts.strategies import mirrored


def each_of(table):
    """A fixture that makes every strategy of `table`, a factory by name."""

    @pytest.fixture(params=table)
    def one(request):
        return table[request.param]()

    return one


def distributed_of(table):
    """All but the default strategy, which counts as none."""
    return {name: make for name, make in table.items() if name != "default"}


def many_of(table):
    """Those with more than one replica."""
    return {name: make for name, make in table.items() if make().num_replicas_in_sync > 1}


@pytest.fixture
def two():
    """Two replicas, for rules that no strategy changes."""
    return mirrored(2)


@pytest.fixture(params=EXECUTORS)
def execute(request):
    """Every executor: ``execute(strategy, fn, args=(), kwargs=None)``."""
    return EXECUTORS[request.param]
