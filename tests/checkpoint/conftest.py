"""Fixtures of the checkpoint tests."""

from tests.contracts.fixtures import each_of, two  # noqa: F401
from tests.contracts.strategies import STRATEGIES

strategy = each_of(STRATEGIES)

# One of each way to store variables, for tests that train.
FEW = ("default", "one_device", "mirrored_3", "central_2")
few = each_of({name: STRATEGIES[name] for name in FEW})
