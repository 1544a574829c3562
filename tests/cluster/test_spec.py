"""The description of a cluster."""

import re

import pytest

from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError

BOTH = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
SPARSE = {"worker": {4: "e:1", 1: "b:1"}, "ps": ["p:1"]}


def test_a_spec_is_what_it_was_made_from():
    spec = ClusterSpec(BOTH)
    assert spec.as_dict() == BOTH
    assert spec.jobs == ["chief", "worker"]
    assert spec.num_tasks("worker") == 2
    assert spec.task_indices("worker") == [0, 1]
    assert spec.task_address("worker", 1) == "c:1"
    assert spec.job_tasks("worker") == ["b:1", "c:1"]


def test_a_job_with_gaps_stays_a_dict():
    spec = ClusterSpec(SPARSE)
    assert spec.as_dict() == {"worker": {1: "b:1", 4: "e:1"}, "ps": ["p:1"]}
    assert spec.num_tasks("worker") == 2
    assert spec.task_indices("worker") == [1, 4]
    assert spec.job_tasks("worker") == [None, "b:1", None, None, "e:1"]
    assert repr(spec) == "ClusterSpec({'worker': {1: 'b:1', 4: 'e:1'}, 'ps': ['p:1']})"


def test_a_dict_without_gaps_is_a_list():
    assert ClusterSpec({"worker": {1: "b:1", 0: "a:1"}}).as_dict() == {"worker": ["a:1", "b:1"]}


def test_task_ids_may_be_the_strings_that_json_makes_of_them():
    assert ClusterSpec({"worker": {"10": "k:1", "2": "c:1"}}).task_indices("worker") == [2, 10]


@pytest.mark.parametrize("cluster", [BOTH, SPARSE, {}, {"worker": []}])
def test_a_spec_of_a_spec_is_equal(cluster):
    spec = ClusterSpec(cluster)
    assert ClusterSpec(spec) == spec
    assert hash(ClusterSpec(spec)) == hash(spec)
    assert spec != ClusterSpec({"worker": ["elsewhere:1"]})
    assert spec != cluster


def test_an_empty_spec_is_false():
    assert not ClusterSpec({})
    assert ClusterSpec(BOTH)
    assert ClusterSpec({"worker": []}).as_dict() == {"worker": []}
    assert ClusterSpec({"worker": []}).job_tasks("worker") == []


def test_a_spec_does_not_change_with_what_it_was_made_from_or_gave():
    tasks = ["a:1"]
    spec = ClusterSpec({"worker": tasks})
    tasks.append("b:1")
    spec.as_dict()["worker"].append("c:1")
    assert spec.as_dict() == {"worker": ["a:1"]}


MISTAKES = {
    "a list": (["a:1"], "a cluster is a dict from job name to the addresses of its tasks, got ['"),
    "a job name that is no string": ({1: ["a:1"]}, "a job name is a string such as 'worker', got"),
    "an empty job name": ({"": ["a:1"]}, "a job name is a string such as 'worker', got ''"),
    "one address": ({"worker": "a:1"}, "the tasks of job 'worker' are a list of addresses, or a"),
    "an address that is no string": (
        {"worker": ["a:1", 2]},
        "the address of task 1 of job 'worker' is 2; expected a string such as 'host0:2222'.",
    ),
    "a negative id": ({"worker": {-1: "a:1"}}, "a task of job 'worker' has the id -1; expected 0"),
    "an id that is no number": ({"worker": {"x": "a:1"}}, "a task of job 'worker' has the id 'x'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_no_description_is_refused(mistake):
    cluster, message = MISTAKES[mistake]
    with pytest.raises(ClusterError, match=re.escape(message)):
        ClusterSpec(cluster)


@pytest.mark.parametrize("method", ["num_tasks", "task_indices", "job_tasks"])
def test_an_unknown_job_is_an_error_that_lists_the_jobs(method):
    message = r"the cluster has no job 'ps'; its jobs are \['chief', 'worker'\]\."
    with pytest.raises(ValueError, match=message):
        getattr(ClusterSpec(BOTH), method)("ps")


def test_an_unknown_task_is_an_error_that_lists_the_tasks():
    with pytest.raises(ValueError, match=r"job 'worker' has no task 2; its tasks are \[0, 1\]\."):
        ClusterSpec(BOTH).task_address("worker", 2)
