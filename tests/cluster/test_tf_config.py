"""``TF_CONFIG``: every valid form, and every mistake with its text."""

import json

import pytest

from replicax.cluster.spec import ClusterSpec
from replicax.cluster.tf_config import TFConfigClusterResolver
from replicax.cluster.tf_config_format import EXAMPLE, TFConfig, parse_tf_config
from replicax.core.errors import ClusterError
from tests.cluster import tf_config_mistakes
from tests.cluster.tf_config_mistakes import MISTAKES, config

WORKERS = {"worker": ["localhost:12345", "localhost:23456"]}

# text, cluster, task type, task id
VALID = {
    "not set": (None, {}, None, None),
    "an empty object": ("{}", {}, None, None),
    "workers": (config(WORKERS, {"type": "worker", "index": 1}), WORKERS, "worker", 1),
    "the documented one": (
        config({**WORKERS, "ps": ["localhost:34567"]}),
        {**WORKERS, "ps": ["localhost:34567"]},
        "worker",
        0,
    ),
    "chief and ps": (
        config({"chief": ["a:1"], "ps": ["b:1"]}, {"type": "ps", "index": 0}),
        {"chief": ["a:1"], "ps": ["b:1"]},
        "ps",
        0,
    ),
    "master": (
        config({"master": ["a:1"], "worker": ["b:1"]}, {"type": "master", "index": 0}),
        {"master": ["a:1"], "worker": ["b:1"]},
        "master",
        0,
    ),
    "an evaluator that is not listed": (
        config(WORKERS, {"type": "evaluator", "index": 0}),
        WORKERS,
        "evaluator",
        0,
    ),
    "an index as text": (config(WORKERS, {"type": "worker", "index": "1"}), WORKERS, "worker", 1),
    "tasks by id": (
        config({"worker": {"3": "a:1", "7": "b:1"}}, {"type": "worker", "index": 7}),
        {"worker": {3: "a:1", 7: "b:1"}},
        "worker",
        7,
    ),
    "IPv6": (config({"worker": ["[::1]:2222"]}), {"worker": ["[::1]:2222"]}, "worker", 0),
    "more keys": (config(WORKERS, environment="cloud", job={"x": 1}), WORKERS, "worker", 0),
}


@pytest.mark.parametrize("name", VALID)
def test_a_valid_variable_is_read(name, monkeypatch):
    text, cluster, task_type, task_id = VALID[name]
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec(cluster)
    assert (resolver.task_type, resolver.task_id) == (task_type, task_id)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_shown_with_what_to_write(name, monkeypatch):
    text, message = MISTAKES[name]
    with pytest.raises(ValueError, match=r"^TF_CONFIG") as raised:
        parse_tf_config(text)
    assert message in str(raised.value)
    assert isinstance(raised.value, ClusterError)
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterError, match=r"^TF_CONFIG"):
        TFConfigClusterResolver()


def test_what_the_errors_say_to_write_is_valid():
    assert EXAMPLE == tf_config_mistakes.EXAMPLE
    assert parse_tf_config(EXAMPLE).to_json() == EXAMPLE


@pytest.mark.parametrize("name", VALID)
def test_a_configuration_and_its_text_mean_the_same(name):
    parsed = parse_tf_config(VALID[name][0])
    if parsed.cluster:
        assert parse_tf_config(parsed.to_json()) == parsed


def test_arguments_win_over_the_variable(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config(WORKERS, rpc_layer="grpc"))
    resolver = TFConfigClusterResolver("worker", 1, rpc_layer="http", environment="here")
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "http")
    assert resolver.environment == "here"
    assert resolver.master() == "http://localhost:23456"
    resolver.task_id = 0
    resolver.rpc_layer = None
    assert resolver.master() == "grpc://localhost:12345"


def test_arguments_make_a_task_in_the_variable_unnecessary(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": WORKERS}))
    assert TFConfigClusterResolver("worker", 1).task_id == 1
    with pytest.raises(ClusterError, match='TF_CONFIG has no "task"'):
        TFConfigClusterResolver("worker")
    with pytest.raises(ClusterError, match="TF_CONFIG has no worker 5"):
        TFConfigClusterResolver("worker", 5)


def test_the_variable_is_read_at_every_question(monkeypatch):
    resolver = TFConfigClusterResolver()
    assert not resolver.cluster_spec()
    monkeypatch.setenv("TF_CONFIG", config(WORKERS))
    assert resolver.cluster_spec() == ClusterSpec(WORKERS)
    assert resolver.task_type == "worker"


def test_the_master_is_the_own_address_and_nothing_for_one_alone(monkeypatch):
    assert TFConfigClusterResolver().master() == ""
    monkeypatch.setenv("TF_CONFIG", config({"worker": ["a:1"]}))
    assert TFConfigClusterResolver().master() == ""
    monkeypatch.setenv("TF_CONFIG", config(WORKERS))
    assert TFConfigClusterResolver().master() == "localhost:12345"
    assert TFConfigClusterResolver().master("worker", 1, "grpc") == "grpc://localhost:23456"
    monkeypatch.setenv("TF_CONFIG", config(WORKERS, session_master="elsewhere:1"))
    assert TFConfigClusterResolver().master() == "elsewhere:1"


def test_a_configuration_can_be_written_by_hand():
    made = TFConfig(ClusterSpec(WORKERS), "worker", 1, rpc_layer="grpc")
    assert parse_tf_config(made.to_json()) == made
