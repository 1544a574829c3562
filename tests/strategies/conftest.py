"""Fixtures of the tests of `StrategyExtended`: every strategy, on 1, 2, 3 and 8 replicas."""

import pytest

import replicax as rx
from tests.contracts.fixtures import distributed_of, each_of, execute, many_of, two  # noqa: F401
from tests.contracts.strategies import STRATEGIES, central


def _central_8():
    """Eight devices are all there are, so that one of them has the variables too."""
    return rx.experimental.CentralStorageStrategy([f"CPU:{i}" for i in range(8)], "CPU:0")


EXTENDED = STRATEGIES | {"central_1": lambda: central(1), "central_8": _central_8}
strategy = each_of(EXTENDED)
distributed = each_of(distributed_of(EXTENDED))
many = each_of(many_of(EXTENDED))


@pytest.fixture(params=["eager", "function"])
def across(request):
    """Calls cross-replica code as it is, or compiled: ``across(fn, *args)``."""
    if request.param == "eager":
        return lambda fn, *args: fn(*args)
    return lambda fn, *args: rx.function(fn)(*args)
