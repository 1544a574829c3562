"""Answers of the Kubernetes API about pods, and a resolver that asks for them."""

import urllib.parse

from replicax.cluster.kubernetes import KubernetesClusterResolver
from replicax.cluster.kubernetes_api import KubernetesApi


def pod(name, ip, phase="Running", index=None):
    metadata = {"name": name, "namespace": "training", "labels": {"job-name": "train"}}
    spec = {"nodeName": "node-1"}
    if index is not None:
        metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
        spec["hostname"] = f"train-{index}"
    status = {"phase": phase, "hostIP": "192.168.0.4", **({"podIP": ip} if ip else {})}
    return {"metadata": metadata, "spec": spec, "status": status}


def route(selector, *pods, namespace="training"):
    where = f"namespaces/{namespace}/" if namespace else ""
    path = f"/api/v1/{where}pods?{urllib.parse.urlencode({'labelSelector': selector})}"
    return {path: (200, {"kind": "PodList", "apiVersion": "v1", "items": list(pods)})}


def resolver_of(api, labels, **arguments):
    client = KubernetesApi(api.url, "training")
    return KubernetesClusterResolver(labels, override_client=client, **arguments)
