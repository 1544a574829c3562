"""What is known of the other workers once they have met."""

import os
import subprocess
import sys

import pytest

from replicax.cluster.addresses import free_port
from tests.backend.fresh_process import ROOT, SETUP_VARIABLES
from tests.cluster.tf_config_mistakes import config

PROGRAM = """
import sys
import jax
import replicax as rx
from replicax.cluster import roles

resolver = rx.cluster_resolver.TFConfigClusterResolver()
spec = resolver.cluster_spec()
rank = roles.id_in_cluster(spec, resolver.task_type, resolver.task_id)
rx.set_virtual_devices(rank + 1, kind="GPU")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], roles.worker_count(spec, resolver.task_type), rank)
jax.devices()
print([resolver.num_accelerators("worker", i) for i in range(2)])
jax.distributed.shutdown()
"""


@pytest.mark.cluster
def test_the_accelerators_of_other_workers_are_counted():
    coordinator = f"127.0.0.1:{free_port()}"
    workers = []
    for index in range(2):
        text = config(
            {"worker": ["localhost:1", "localhost:2"]}, {"type": "worker", "index": index}
        )
        workers.append(start(coordinator, TF_CONFIG=text))
    try:
        outputs = [worker.communicate(timeout=100) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (printed, error) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, error[-3000:]
        assert printed.splitlines()[-1] == "[{'GPU': 1}, {'GPU': 2}]"


def start(coordinator, **variables):
    inherited = {k: v for k, v in os.environ.items() if k not in SETUP_VARIABLES}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, coordinator],
        env=inherited | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
