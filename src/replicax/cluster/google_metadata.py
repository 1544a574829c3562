"""Asks the metadata server that every machine of Google Cloud can reach."""

from __future__ import annotations

import os

from replicax.cluster import json_api
from replicax.core.errors import ClusterPlatformError

_DEFAULT_HOST = "metadata.google.internal"
_HEADERS = {"Metadata-Flavor": "Google"}


def metadata_url(path: str) -> str:
    """The address of one piece of metadata.

    Another server is named by ``GCE_METADATA_HOST``, as in Google's own libraries, or by
    ``GCE_METADATA_IP``, as in JAX.

    Example:
        >>> metadata_url("instance/zone")
        'http://metadata.google.internal/computeMetadata/v1/instance/zone'
    """
    host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP")
    return f"http://{host or _DEFAULT_HOST}/computeMetadata/v1/{path}"


def read_attribute(name: str) -> str:
    """The value of an attribute of this machine.

    Raises:
        ClusterPlatformError: If the server does not answer, or the machine has no such attribute.
    """
    return json_api.fetch_text(metadata_url(f"instance/attributes/{name}"), headers=_HEADERS)


def access_token() -> str:
    """A token for Google's APIs, of the machine's service account.

    Raises:
        ClusterPlatformError: If the server does not answer, or gives none.
    """
    url = metadata_url("instance/service-accounts/default/token")
    token = json_api.fetch_json(url, headers=_HEADERS).text("access_token")
    if not token:
        raise ClusterPlatformError(
            f"{url} gave no access token. Give the machine a service account, or pass credentials=."
        )
    return token
