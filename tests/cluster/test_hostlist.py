"""Slurm's notation of hosts and tasks, as tables."""

import re
import tracemalloc

import pytest

from replicax.cluster import hostlist
from replicax.core.errors import ClusterError

HOSTS = {
    "n1": ["n1"],
    "n1,n2": ["n1", "n2"],
    "n[1-3]": ["n1", "n2", "n3"],
    "n[8-11]": ["n8", "n9", "n10", "n11"],
    "n[008-011]": ["n008", "n009", "n010", "n011"],
    "n[1,3-4,7]": ["n1", "n3", "n4", "n7"],
    "n[1-2],m5,o[3-4,6]": ["n1", "n2", "m5", "o3", "o4", "o6"],
    "rack[0-1]n[2-3]": ["rack0n2", "rack0n3", "rack1n2", "rack1n3"],
    "n[1-2]-ib": ["n1-ib", "n2-ib"],
    "a-b.c[1]": ["a-b.c1"],
}
BAD_HOSTS = [
    "",
    ",n1",
    "n1,",
    "n1,,n2",
    "n[1-",
    "n[1-2",
    "n1]",
    "n[]",
    "n[a-b]",
    "n[3-1]",
    "n[1--2]",
]
TOO_MANY_HOSTS = [
    "n[0-50000000]",
    "n[0-999999999999999999]",
    "n[0-60000],m[0-60000]",
    "n[0-60000,0-60000]",
    "n" + "[1-9]" * 40,
]
TOO_MANY_TASKS = ["1(x50000000)", "50000000", "60000(x2)", "0(x999999999999999999)"]
TASKS = {"1": [1], "2(x3)": [2, 2, 2], "3(x2),1": [3, 3, 1], "16,8(x2),4": [16, 8, 8, 4]}
BAD_TASKS = ["9" * 200, "", "x2", "2(3)", "2(x)", "2,,1", "-1"]


@pytest.mark.parametrize("text", HOSTS)
def test_hosts_are_listed_in_order(text):
    assert hostlist.expand_hosts(text) == HOSTS[text]


@pytest.mark.parametrize("text", BAD_HOSTS)
def test_what_lists_no_hosts_is_refused(text):
    with pytest.raises(ClusterError, match=re.escape(f"{text!r} is no list of hosts; expected")):
        hostlist.expand_hosts(text)


@pytest.mark.parametrize("text", TOO_MANY_HOSTS)
def test_more_hosts_than_any_cluster_has_are_refused_before_they_are_listed(text):
    tracemalloc.start()
    with pytest.raises(ClusterError, match=r"hosts or more; a cluster has at most 100000 tasks"):
        hostlist.expand_hosts(text)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000  # bytes, at any time
    tracemalloc.stop()


@pytest.mark.parametrize("text", ["n[" + "9" * 5000 + "]", "n" * 300 + "[0-99999]", "n[\u0661]"])
def test_numbers_and_names_without_bounds_are_refused(text):
    with pytest.raises(ClusterError, match="is no list of hosts; expected"):
        hostlist.expand_hosts(text)


@pytest.mark.parametrize("text", TOO_MANY_TASKS)
def test_more_tasks_than_any_cluster_has_are_refused_before_they_are_listed(text):
    with pytest.raises(ClusterError, match="counts more nodes or tasks than a cluster has, 100000"):
        hostlist.expand_tasks_per_node(text)


@pytest.mark.parametrize("text", TASKS)
def test_tasks_are_counted_by_node(text):
    assert hostlist.expand_tasks_per_node(text) == TASKS[text]


@pytest.mark.parametrize("text", BAD_TASKS)
def test_what_counts_no_tasks_is_refused(text):
    with pytest.raises(ClusterError, match=re.escape(f"{text!r} does not say how many tasks")):
        hostlist.expand_tasks_per_node(text)


def test_hosts_are_filled_or_take_turns():
    counts = hostlist.tasks_by_host(["n2", "n1"], [3, 1])
    assert hostlist.block_hosts(counts) == ["n2", "n2", "n2", "n1"]
    assert hostlist.cyclic_hosts(counts) == ["n2", "n1", "n2", "n2"]
    assert hostlist.cyclic_hosts({}) == []
    with pytest.raises(ClusterError, match=r"there are 2 hosts \['a', 'b'\] and 1 counts"):
        hostlist.tasks_by_host(["a", "b"], [1])
