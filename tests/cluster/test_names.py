"""The documented names and arguments, in all places that the documents give them."""

import inspect

import pytest

import replicax as rx
import replicax.tf as tf

SIGNATURES = {
    "ClusterResolver.master": "self, task_type=None, task_id=None, rpc_layer=None",
    "ClusterResolver.num_accelerators": "self, task_type=None, task_id=None, config_proto=None",
    "ClusterSpec": "cluster",
    "ClusterSpec.job_tasks": "self, job_name",
    "ClusterSpec.num_tasks": "self, job_name",
    "ClusterSpec.task_address": "self, job_name, task_index",
    "ClusterSpec.task_indices": "self, job_name",
    "GCEClusterResolver": (
        "project, zone, instance_group, port, task_type='worker', task_id=0, rpc_layer='grpc', "
        "credentials='default', service=None"
    ),
    "KubernetesClusterResolver": (
        "job_to_label_mapping=None, tf_server_port=8470, rpc_layer='grpc', override_client=None, "
        "executable_location=<KubernetesExecutableLocation.WITHIN_CLUSTER: 0>"
    ),
    "SageMakerClusterResolver": (
        "port=2223, task_type=None, task_id=None, rpc_layer=None, environment=None"
    ),
    "SimpleClusterResolver": (
        "cluster_spec, master='', task_type=None, task_id=None, environment='', "
        "num_accelerators=None, rpc_layer=None"
    ),
    "SlurmClusterResolver": (
        "jobs=None, port_base=8888, gpus_per_node=None, gpus_per_task=None, tasks_per_node=None, "
        "auto_set_gpu=True, rpc_layer='grpc'"
    ),
    "SlurmClusterResolver.get_task_info": "self",
    "TFConfigClusterResolver": "task_type=None, task_id=None, rpc_layer=None, environment=None",
    "TPUClusterResolver": (
        "tpu=None, zone=None, project=None, job_name='worker', coordinator_name=None, "
        "coordinator_address=None, credentials='default', service=None, discovery_url=None"
    ),
    "TPUClusterResolver.connect": "tpu=None, zone=None, project=None",
    "UnionResolver": "*args, **kwargs",
}


@pytest.mark.parametrize("path", SIGNATURES)
def test_a_signature_is_the_documented_one(path):
    found = rx.cluster_resolver
    for name in path.split("."):
        found = getattr(found, name)
    parameters = inspect.signature(found).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[path]


def test_the_documented_spelling_has_the_same_objects():
    assert tf.distribute.cluster_resolver is rx.cluster_resolver
    assert tf.train.ClusterSpec is rx.cluster_resolver.ClusterSpec
