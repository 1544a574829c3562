"""Reads the text of a ``TF_CONFIG`` and refuses every one that cannot be right.

Pure: the text comes as an argument. `tf_config` has the resolver that reads the
variable, ``replicax doctor`` and the launcher use the same functions.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from replicax.cluster import bounds, roles
from replicax.cluster.spec import ClusterSpec
from replicax.core import bounded_json
from replicax.core.bounded_json import shown
from replicax.core.errors import ClusterError

EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True, slots=True)
class TFConfig:
    """A valid ``TF_CONFIG``.

    Attributes:
        cluster: Who is in the cluster; empty when the variable is not set.
        task_type: The job of this task; None in an empty cluster.
        task_id: Its number in the job.
        rpc_layer: The scheme of addresses, if one is given.
        session_master: The address of a session, if one is given.

    Example:
        >>> config = TFConfig(ClusterSpec({"worker": ["host0:2222"]}), "worker", 0)
        >>> config.task_type
        'worker'
    """

    cluster: ClusterSpec
    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    session_master: str | None = None

    def to_json(self) -> str:
        """The text that `parse_tf_config` reads as this.

        Example:
            >>> TFConfig(ClusterSpec({"worker": ["host0:2222"]}), "worker", 0).to_json()
            '{"cluster": {"worker": ["host0:2222"]}, "task": {"type": "worker", "index": 0}}'
        """
        task = {"type": self.task_type, "index": self.task_id}
        more = {"rpc_layer": self.rpc_layer, "session_master": self.session_master}
        given = {name: value for name, value in more.items() if value is not None}
        return json.dumps({"cluster": self.cluster.as_dict(), "task": task, **given})


def parse_tf_config(
    text: str | None, task_type: str | None = None, task_id: int | None = None
) -> TFConfig:
    """The configuration that `text` describes.

    Args:
        text: The value of ``TF_CONFIG``; None if it is not set. ``{}`` means the same.
        task_type: What to use instead of the type in the text.
        task_id: What to use instead of the index in the text.

    Raises:
        ClusterError: If the text does not describe a cluster and a task in it.

    Example:
        >>> config = parse_tf_config(EXAMPLE)
        >>> config.task_type, config.cluster.num_tasks("worker")
        ('worker', 2)
        >>> parse_tf_config(None).cluster
        ClusterSpec({})
    """
    config = {} if text is None else _load(text)
    if not config:
        return TFConfig(ClusterSpec({}), task_type, task_id)
    cluster = _cluster(config)
    found_type, found_id = _task(config, cluster, task_type, task_id)
    return TFConfig(
        cluster,
        found_type,
        found_id,
        _optional_string(config, "rpc_layer"),
        _optional_string(config, "session_master"),
    )


def _load(text: str) -> dict[str, Any]:
    if not text.strip():
        raise _error("is empty", "Unset it for a single process, or write it like")
    try:
        config = bounded_json.parse(text)
    except bounded_json.RepeatedNameError as error:
        raise _error(str(error), "Merge the two, as in") from error
    except bounded_json.JsonError as error:
        quotes = ". JSON has double quotes only." if "'" in text and '"' not in text else ""
        raise _error(f"{error}{quotes}", "Write") from error
    if not isinstance(config, dict):
        raise _error(f"is {shown(config)}, not a JSON object", "Write")
    return config


def _cluster(config: Mapping[str, Any]) -> ClusterSpec:
    if "cluster" not in config:
        raise _error(f'has no "cluster", only {_keys(config)}', "List the addresses of all tasks:")
    described = config["cluster"]
    if not isinstance(described, dict):
        raise _error(f'has "cluster": {shown(described)}, not an object', "Write")
    if not described:
        raise _error('has an empty "cluster"', "Unset it for a single process, or write")
    try:
        cluster = ClusterSpec(described)
    except ClusterError as error:
        raise ClusterError(f"TF_CONFIG: {error}") from error
    roles.check_cluster(cluster, "TF_CONFIG")
    return cluster


def _task(
    config: Mapping[str, Any], cluster: ClusterSpec, task_type: str | None, task_id: int | None
) -> tuple[str, int]:
    task = config.get("task")
    if task is None and (task_type is None or task_id is None):
        raise _error('has no "task": which one of the cluster is this process?', "Add it, as in")
    if task is not None and not isinstance(task, dict):
        raise _error(f'has "task": {shown(task)}, not an object', "Write")
    found_type = _entry(task, "type") if task_type is None else task_type
    if not isinstance(found_type, str):
        raise _error(f'has the task "type": {shown(found_type)}, not a string', "Write")
    found_id = _index(_entry(task, "index") if task_id is None else task_id)
    roles.check_task(cluster, found_type, found_id, "TF_CONFIG")
    return found_type, found_id


def _entry(task: Mapping[str, Any] | None, name: str) -> Any:
    if task is None or name not in task:
        raise _error(f'has a "task" without "{name}", only {_keys(task or {})}', "Write")
    return task[name]


def _index(index: object) -> int:
    written = bounds.whole_number(index)  # as shell scripts write it
    if written is not None:
        return written
    if isinstance(index, bool) or not isinstance(index, int):
        raise _error(f'has the task "index": {shown(index)}, not a whole number', "Write")
    return index


def _optional_string(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise ClusterError(
            f'TF_CONFIG has "{name}": {shown(value)}, not a string. Leave it out, or write a '
            "string."
        )
    return value


def _error(problem: str, advice: str) -> ClusterError:
    end = "" if problem.endswith((".", "?")) else "."
    return ClusterError(f"TF_CONFIG {problem}{end} {advice} {EXAMPLE}")


def _keys(config: Mapping[str, Any]) -> str:
    return ", ".join(f'"{name}"' for name in config) or "nothing"
