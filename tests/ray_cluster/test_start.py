"""Ray that ends while it starts."""

import pytest

from replicax.core.errors import ClusterPlatformError
from replicax.ray_cluster import local

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_what_ray_said_is_in_the_error_though_its_files_are_deleted(monkeypatch):
    monkeypatch.setattr(local, "_OBJECT_STORE_BYTES", 1)
    match = r"(?s)Ray ended while it started on this machine. It said:.*object store"
    with pytest.raises(ClusterPlatformError, match=match):
        local.LocalCluster(num_cpus=1)
