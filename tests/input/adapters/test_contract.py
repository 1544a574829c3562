"""The contract of adapters, for the libraries of the main environment."""

import pytest

from tests.input.adapters.contract import (
    FrugalContract,
    FunctionContract,
    IndexedContract,
    SourceContract,
)
from tests.input.adapters.rows import ROWS


def rows_that(are):
    return pytest.fixture(params=[row for row in ROWS if are(row)], ids=lambda row: row.name)(
        lambda self, request: request.param
    )


class TestSources(SourceContract):
    row = rows_that(lambda row: True)


class TestFunctions(FunctionContract):
    row = rows_that(lambda row: row.has_function)


class TestIndexed(IndexedContract):
    row = rows_that(lambda row: row.is_indexed)


class TestFrugal(FrugalContract):
    row = rows_that(lambda row: row.is_frugal and row.has_function)
