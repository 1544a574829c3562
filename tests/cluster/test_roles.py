"""Who trains, in which order, and who is the chief: pure functions, as tables."""

import re

import pytest

from replicax.cluster import roles
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError

WORKERS = {"worker": ["a:1", "b:1"]}
WITH_PS = {"worker": ["a:1", "b:1"], "ps": ["p:1"]}
WITH_CHIEF = {"worker": ["a:1", "b:1"], "chief": ["c:1"], "ps": ["p:1"], "evaluator": ["e:1"]}
WITH_MASTER = {"worker": ["a:1"], "master": ["m:1"]}
GAPS = {"worker": {2: "a:1", 5: "b:1"}}
ALONE = {}

# cluster, task type, task id; is it the chief, its rank, how many it works with
TASKS = [
    (WORKERS, "worker", 0, True, 0, 2),
    (WORKERS, "worker", 1, False, 1, 2),
    (WITH_PS, "worker", 0, True, 0, 2),
    (WITH_CHIEF, "chief", 0, True, 0, 3),
    (WITH_CHIEF, "worker", 0, False, 1, 3),
    (WITH_CHIEF, "worker", 1, False, 2, 3),
    (WITH_CHIEF, "evaluator", 0, True, 0, 1),
    (WORKERS, "evaluator", 0, True, 0, 1),  # need not be listed
    (WITH_MASTER, "master", 0, True, 0, 2),
    (WITH_MASTER, "worker", 0, False, 1, 2),
    (GAPS, "worker", 2, True, 0, 2),
    (GAPS, "worker", 5, False, 1, 2),
    (ALONE, None, None, True, 0, 1),
    (ALONE, "worker", 0, True, 0, 1),
]


@pytest.mark.parametrize(("cluster", "task_type", "task_id", "chief", "rank", "count"), TASKS)
def test_the_role_of_a_task(cluster, task_type, task_id, chief, rank, count):
    spec = ClusterSpec(cluster)
    assert roles.is_chief(spec, task_type, task_id) is chief
    assert roles.id_in_cluster(spec, task_type, task_id) == rank
    assert roles.worker_count(spec, task_type) == count


@pytest.mark.parametrize("cluster", [WORKERS, WITH_PS, WITH_CHIEF, WITH_MASTER, GAPS])
def test_ranks_are_the_places_in_the_ranked_list_and_one_task_is_chief(cluster):
    spec = ClusterSpec(cluster)
    tasks = roles.ranked_tasks(spec)
    places = [roles.id_in_cluster(spec, t.task_type, t.task_id) for t in tasks]
    assert places == list(range(len(tasks)))
    chiefs = [t for t in tasks if roles.is_chief(spec, t.task_type, t.task_id)]
    assert chiefs == tasks[:1]
    assert all(roles.takes_part(t.task_type) for t in tasks)


def test_the_chief_is_ranked_first_and_others_take_no_part():
    shown = [str(task) for task in roles.ranked_tasks(ClusterSpec(WITH_CHIEF))]
    assert shown == ["chief 0 (c:1)", "worker 0 (a:1)", "worker 1 (b:1)"]
    assert not roles.takes_part("ps")
    assert not roles.takes_part("evaluator")
    assert roles.takes_part(None)


def test_a_ps_is_no_chief_and_has_no_id_and_counts_no_workers():
    spec = ClusterSpec(WITH_PS)
    assert not roles.is_chief(spec, "ps", 0)
    with pytest.raises(ClusterError, match="a task of type 'ps' has no id among the workers"):
        roles.id_in_cluster(spec, "ps", 0)
    with pytest.raises(ClusterError, match="a task of type 'ps' does not count workers"):
        roles.worker_count(spec, "ps")


@pytest.mark.parametrize("question", [roles.is_chief, roles.id_in_cluster])
def test_a_task_that_the_cluster_does_not_have_is_an_error(question):
    with pytest.raises(ClusterError, match="the cluster has no job 'ps', which is the type of"):
        question(ClusterSpec(WORKERS), "ps", 0)
    with pytest.raises(ClusterError, match="the cluster has no worker 2, which is the index of"):
        question(ClusterSpec(WORKERS), "worker", 2)


MISTAKES = {
    "an unknown job": (
        {"worker": ["a:1"], "trainer": ["b:1"]},
        "the cluster has the job 'trainer'; expected one of chief, master, worker, ps, evaluator.",
    ),
    "nobody trains": (
        {"ps": ["p:1"]},
        "the cluster has only the jobs ['ps']: nobody trains. Add 'worker'.",
    ),
    "two chiefs": (
        {"chief": ["a:1", "b:1"]},
        "the cluster has 2 tasks in the job 'chief': ['a:1', 'b:1']; there is at most one. List "
        "the others under 'worker'.",
    ),
    "two evaluators": (
        {"worker": ["a:1"], "evaluator": ["b:1", "c:1"]},
        "the cluster has 2 tasks in the job 'evaluator': ['b:1', 'c:1']; there is at most one.",
    ),
    "chief and master": (
        {"chief": ["a:1"], "master": ["b:1"]},
        "the cluster has both 'chief' (a:1) and 'master' (b:1), which are two names for one role.",
    ),
    "a bad address": (
        {"worker": ["a:1", "b"]},
        "the cluster: worker 1: the address 'b' has no port.",
    ),
    "the same address in another case": (
        {"worker": ["Host:1"], "ps": ["host:1"]},
        "the cluster has the address 'host:1' twice, for worker 0 and for ps 0.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_cluster_that_cannot_be_trained_on_is_refused(mistake):
    cluster, message = MISTAKES[mistake]
    with pytest.raises(ClusterError, match=re.escape(message)):
        roles.check_cluster(ClusterSpec(cluster))


@pytest.mark.parametrize("cluster", [WORKERS, WITH_PS, WITH_CHIEF, WITH_MASTER, GAPS, ALONE])
def test_a_cluster_that_can_be_trained_on_passes(cluster):
    roles.check_cluster(ClusterSpec(cluster))


def test_the_indices_of_a_large_job_are_shown_as_a_range():
    spec = ClusterSpec({"worker": [f"h{i}:1" for i in range(9)]})
    with pytest.raises(ClusterError, match="the indices of 'worker' are 0 to 8"):
        roles.check_task(spec, "worker", 9)
