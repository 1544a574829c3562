"""The contract of adapters, for TensorFlow and torch."""

import pytest

from tests.input.adapters.contract import FunctionContract, SourceContract
from tests_adapters.rows import ROWS


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request):
    return request.param


class TestSources(SourceContract):
    pass


class TestFunctions(FunctionContract):
    @pytest.fixture(params=[row for row in ROWS if row.has_function], ids=lambda row: row.name)
    def row(self, request):
        return request.param
