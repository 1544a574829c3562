"""SageMaker training jobs, from recorded environments."""

import re

import pytest

from replicax.cluster.sagemaker import SageMakerClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterPlatformError
from tests.cluster.recorded import sagemaker_job

# environment, addresses, task id, master
JOBS = {
    "two hosts": (
        sagemaker_job('["algo-2","algo-1"]', "algo-2"),
        ["algo-1:2223", "algo-2:2223"],
        1,
    ),
    "one host": (sagemaker_job('["algo-1"]', "algo-1"), ["algo-1:2223"], 0),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_recorded_job_is_resolved(name, setenv):
    environment, addresses, task_id = JOBS[name]
    setenv(environment)
    resolver = SageMakerClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec({"worker": addresses})
    assert (resolver.task_type, resolver.task_id) == ("worker", task_id)
    assert resolver.master() == ("" if len(addresses) == 1 else addresses[task_id])


def test_arguments_win_over_the_environment(setenv):
    setenv(sagemaker_job('["algo-1","algo-2"]', "algo-1"))
    resolver = SageMakerClusterResolver(9000, "worker", 1, rpc_layer="grpc", environment="aws")
    assert (resolver.task_id, resolver.environment) == (1, "aws")
    assert resolver.master() == "grpc://algo-2:9000"


MISTAKES = {
    "no hosts": ({}, "the environment variable SM_HOSTS is not set. SageMaker's training toolkit"),
    "no own host": (
        {"SM_HOSTS": '["algo-1"]'},
        "the environment variable SM_CURRENT_HOST is not set.",
    ),
    "not JSON": (
        sagemaker_job("algo-1", "algo-1"),
        "SM_HOSTS is 'algo-1'; expected a JSON list of host",
    ),
    "not names": (
        sagemaker_job("[1]", "algo-1"),
        "SM_HOSTS is '[1]'; expected a JSON list of host names.",
    ),
    "another host": (
        sagemaker_job('["algo-1"]', "algo-9"),
        "this host, SM_CURRENT_HOST='algo-9', is not among SM_HOSTS='[\"algo-1\"]'.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_job_that_cannot_be_resolved_says_why(name, setenv):
    environment, message = MISTAKES[name]
    setenv(environment)
    with pytest.raises(ClusterPlatformError, match=re.escape(message)):
        SageMakerClusterResolver().cluster_spec()
