"""Answers of the Compute Engine API about an instance group, and a resolver that asks for them."""

from replicax.cluster.gce import GCEClusterResolver

TOKEN = "ya29.s3cret"
ZONE = "/compute/v1/projects/my-project/zones/us-west1-a"
LIST = f"{ZONE}/instanceGroups/my-group/listInstances?orderBy=name"


def instance(name):
    url = f"https://www.googleapis.com{ZONE}/instances/{name}"
    return {"instance": url, "status": "RUNNING"}


def machine(name, ip):
    interfaces = [{"network": "default", "networkIP": ip}] if ip else []
    return {f"{ZONE}/instances/{name}": (200, {"name": name, "networkInterfaces": interfaces})}


def group(*names):
    return {LIST: (200, {"kind": "compute#x", "items": [instance(name) for name in names]})}


def resolver_of(api, **arguments):
    settings = {"credentials": TOKEN, "service": f"{api.url}/compute/v1"} | arguments
    return GCEClusterResolver("my-project", "us-west1-a", "my-group", 8470, **settings)
