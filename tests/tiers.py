"""The two tiers of the tests: the quick one by default, everything with ``--full``.

The quick tier leaves out tests marked ``slow`` or ``timing`` and thins the tables that the others
run over: of the cases that differ in nothing but the named parameters it keeps a few. A hash of the
case's name chooses them, so each run has the same ones, and different tests have different ones.
Its programs are compiled with few optimizations, which takes a quarter less time; the full tier
runs what users run.
"""

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable

import jax
import pytest

FULL_ONLY = ("slow", "timing")
STRATEGIES = ("strategy", "distributed", "many", "in_place")
WHOLE_ROW = "mirrored_2"  # runs with every executor and every other parameter
NUM_OTHER_STRATEGIES = 2  # for a test, with one case each


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run every case, not the quick tier only")


def pytest_configure(config: pytest.Config) -> None:
    """Sets how much the compiler optimizes, here and in the processes that tests start."""
    if not config.getoption("--full"):
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def is_full(request: pytest.FixtureRequest) -> bool:
    """Whether this run is asked for everything, for tests whose size depends on it."""
    return request.config.getoption("--full")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reduces `items` to the quick tier."""
    if config.getoption("--full"):
        return
    quick = [item for item in items if not any(map(item.get_closest_marker, FULL_ONLY))]
    marked = defaultdict(list)
    for item in quick:
        if (marker := item.get_closest_marker("thin")) is not None:
            marked[marker.args, marker.kwargs.get("keep", 1)].append(item)
    for (names, keep), cases in marked.items():
        quick = _without(quick, cases, kept=_thinned(cases, names, keep))
    others = [item for item in quick if _strategy_of(item) not in (None, WHOLE_ROW)]
    one_each = _few(others, lambda item: (_test_of(item), _strategy_of(item)), keep=1)
    quick = _without(quick, others, kept=_few(one_each, _test_of, keep=NUM_OTHER_STRATEGIES))
    config.hook.pytest_deselected(items=_without(items, quick))
    items[:] = quick


def _thinned(items: list[pytest.Item], names: tuple[str, ...], keep: int) -> list[pytest.Item]:
    """Of the cases that differ in the parameters `names` only, as many as `keep`."""

    def rest(item: pytest.Item) -> Hashable:
        # The cases of a test share the objects of its tables, which need not be hashable.
        others = sorted((n, id(value)) for n, value in _params(item).items() if n not in names)
        return _test_of(item), tuple(others)

    return _few(items, rest, keep)


def _few(items: list[pytest.Item], key: Callable[[pytest.Item], Hashable], keep: int) -> list:
    """As many as `keep` of the items with the same key."""
    alike = defaultdict(list)
    for item in items:
        alike[key(item)].append(item)
    by_hash = lambda item: zlib.crc32(item.nodeid.encode())  # noqa: E731
    return [item for cases in alike.values() for item in sorted(cases, key=by_hash)[:keep]]


def _params(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _without(items: list[pytest.Item], those: list[pytest.Item], kept=()) -> list[pytest.Item]:
    gone = {id(item) for item in those} - {id(item) for item in kept}
    return [item for item in items if id(item) not in gone]


def _strategy_of(item: pytest.Item) -> str | None:
    """The row of the table of strategies that a case is about."""
    params = _params(item)
    rows = [params[name] for name in STRATEGIES if name in params]
    return next((row for row in rows if isinstance(row, str)), None)
