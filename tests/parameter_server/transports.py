"""The transports that the coordinator contract runs over: a row here is tested without a test."""

import pytest

RAY = "ray"
_OF_RAY = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TRANSPORTS = ["embedded", pytest.param(RAY, marks=_OF_RAY)]
"""What ``ParameterServerStrategy(transport=...)`` is given."""
