"""The two tiers of the tests: the quick one by default, everything with ``--full``.

The quick tier leaves out tests marked ``slow`` or ``timing``. The others run, but not with
every case: over the strategies it runs with one in full and with a few others, and the cases of a
test may take a fifth of a second together, or there is one. A test runs in the full tier only if
one case takes longer than `MOST_SECONDS`; one marked ``quick`` runs all the same. What a case takes
was measured, see `COSTS`; a new test, which nobody has measured, runs whole, and so does one marked
``whole``. A hash of the case's name chooses, so each run has the same cases, and different tests
have different ones.

Programs of the quick tier are compiled with few optimizations, which takes a quarter less time;
the full tier runs what users run.
"""

import json
import os
import pathlib
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable

import jax
import pytest

FULL_ONLY = ("slow", "timing")
STRATEGIES = ("strategy", "distributed", "many", "in_place")
WHOLE_ROW = "mirrored_2"  # runs with every executor and every other parameter
NUM_OTHER_STRATEGIES = 1  # for a test, with one case

COSTS = pathlib.Path(__file__).with_name("costs.json")
"""The seconds of a case, by test, where it matters. ``make costs`` measures them again."""

BUDGET_SECONDS = 0.2
"""What the cases of one test may take together in the quick tier, unless it is one case."""

MOST_SECONDS = 1.7
"""What one case may take in the quick tier."""

QUICK_SHARE = 5
"""The quick tier draws one of so many random examples."""

_is_full = False


def examples(count: int) -> int:
    """How many random examples to draw in this tier, where the full one draws `count`."""
    return count if _is_full else -(-count // QUICK_SHARE)


def full_only(*values: object) -> object:
    """A row of a table of parameters, for the full tier."""
    return pytest.param(*values, marks=pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run every case, not the quick tier only")
    parser.addoption("--rest", action="store_true", help="run what the quick tier does not")
    parser.addoption(
        "--costs", action="store_true", help=f"measure {COSTS.name} again; with --full"
    )
    parser.addoption(
        "--until", type=float, help="skip what has not begun by then, in seconds as date +%%s gives"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Sets how much the compiler optimizes, here and in the processes that tests start."""
    global _is_full
    _is_full = config.getoption("--full") or config.getoption("--rest")
    if not _is_full:
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
    is_worker = hasattr(config, "workerinput")
    if config.getoption("--costs") and config.getoption("--full") and not is_worker:
        config.pluginmanager.register(_Costs())


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """With ``-m cluster``, spares the import of files that have no such test."""
    is_asked = config.option.markexpr == "cluster" and collection_path.suffix == ".py"
    return True if is_asked and "mark.cluster" not in collection_path.read_text() else None


@pytest.fixture(scope="session")
def is_full() -> bool:
    """Whether this run is asked for everything, for tests whose size depends on it."""
    return _is_full


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reduces `items` to those of the tier."""
    if config.getoption("--full"):
        return
    quick = _quick(items)
    chosen = quick
    if config.getoption("--rest"):
        chosen = _without(items, quick, kept=list(filter(_depends_on_tier, quick)))
    config.hook.pytest_deselected(items=_without(items, chosen))
    items[:] = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is left when the time is up, before any fixture of it starts."""
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip("the time of --until is over")


def _quick(items: list[pytest.Item]) -> list[pytest.Item]:
    quick = [item for item in items if not any(map(item.get_closest_marker, FULL_ONLY))]
    others = [item for item in quick if _strategy_of(item) not in (None, WHOLE_ROW)]
    one_each = _few(others, lambda item: (_test_of(item), _strategy_of(item)), keep=1)
    quick = _without(quick, others, kept=_few(one_each, _test_of, keep=NUM_OTHER_STRATEGIES))
    costs = json.loads(COSTS.read_text())
    dear = [i for i in quick if _test_of(i) in costs and not i.get_closest_marker("whole")]
    kept = [
        item
        for test, cases in _by(dear, _test_of).items()
        if costs[test] <= MOST_SECONDS or cases[0].get_closest_marker("quick")
        for item in _few(cases, _test_of, keep=max(1, int(BUDGET_SECONDS / costs[test])))
    ]
    return _without(quick, dear, kept)


def _depends_on_tier(item: pytest.Item) -> bool:
    """Whether a test does more in the full tier."""
    return "is_full" in item.fixturenames or hasattr(item.module, examples.__name__)


def _by(items: list[pytest.Item], key: Callable[[pytest.Item], Hashable]) -> dict:
    alike = defaultdict(list)
    for item in items:
        alike[key(item)].append(item)
    return alike


def _few(items: list[pytest.Item], key: Callable[[pytest.Item], Hashable], keep: int) -> list:
    """As many as `keep` of the items with the same key."""
    by_hash = lambda item: zlib.crc32(item.nodeid.encode())  # noqa: E731
    return [
        item for cases in _by(items, key).values() for item in sorted(cases, key=by_hash)[:keep]
    ]


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


class _Costs:
    """Measures what the cases of each test take, and writes down the dear ones."""

    def __init__(self) -> None:
        self._seconds = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "cluster" not in report.keywords:  # whose tests share what takes long
            self._seconds[report.nodeid.partition("[")[0]][report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        costs = json.loads(COSTS.read_text())
        for test, cases in self._seconds.items():
            costs.pop(test, None)
            if sum(cases.values()) > BUDGET_SECONDS:
                costs[test] = round(sum(cases.values()) / len(cases), 3)
        COSTS.write_text(json.dumps(costs, indent=1, sort_keys=True) + "\n")
