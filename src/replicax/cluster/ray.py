"""The resolver for actors of a Ray program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from replicax.cluster.addresses import Address, free_port
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.cluster.tf_config import VARIABLE
from replicax.cluster.tf_config_format import TFConfig
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.core.extras import require_extra

_ANSWER_SECONDS = 300.0  # actors may still be starting


class RayClusterResolver(ClusterResolver):
    """The actors of a Ray program, each one a task.

    The program that has started the actors makes it: each actor then chooses a free port of its
    node. Given to an actor, or after `set_tf_config`, it says there which task the actor is. In the
    program itself the task is not known.

    Args:
        tasks: The actors of each job, in the order of their ids: ``{"worker": [first, second]}``.
        rpc_layer: The scheme of `master`.
        environment: What `environment` answers.

    Raises:
        ClusterError: If there is no actor in `tasks`, or one is there twice.
        ClusterPlatformError: If an actor is gone or does not answer.
        ImportError: If Ray is not installed.

    Example:
        >>> import ray  # doctest: +SKIP
        >>> @ray.remote  # doctest: +SKIP
        ... class Trainer:
        ...     def train(self):
        ...         strategy = rx.MultiWorkerMirroredStrategy()
        ...         ...
        >>> trainers = [Trainer.remote() for _ in range(2)]  # doctest: +SKIP
        >>> RayClusterResolver({"worker": trainers}).set_tf_config()  # doctest: +SKIP
        >>> ray.get([trainer.train.remote() for trainer in trainers])  # doctest: +SKIP
    """

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Any]],
        rpc_layer: str | None = None,
        environment: str = "",
    ) -> None:
        require_extra("ray", user="RayClusterResolver", extra="ray")
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._actors = {job: list(actors) for job, actors in tasks.items()}
        flat = [actor for actors in self._actors.values() for actor in actors]
        if not flat:
            raise ClusterError(f"there is no actor in {dict(tasks)!r}. Give one for each task.")
        places = _ask(flat, _choose_place)
        ids = [actor_id for actor_id, _ in places]
        if len(set(ids)) < len(ids):
            raise ClusterError(
                f"{len(ids)} tasks have only {len(set(ids))} actors. Start an actor for each task."
            )
        while clashing := [i for i, place in enumerate(places) if place[1] in _before(places, i)]:
            for index in clashing:  # two actors of one node found the same port
                (places[index],) = _ask([flat[index]], _choose_place)
        remaining = iter(places)
        self._places = {job: [next(remaining) for _ in a] for job, a in self._actors.items()}

    def cluster_spec(self) -> ClusterSpec:
        """The cluster: an address on the node of each actor.

        Returns:
            The cluster.
        """
        return ClusterSpec(
            {job: [address for _, address in places] for job, places in self._places.items()}
        )

    def _find_task(self) -> tuple[str | None, int | None]:
        import ray

        own = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
        for job, places in self._places.items():
            for index, (actor_id, _) in enumerate(places):
                if actor_id == own:
                    return job, index
        return None, None

    @property
    def environment(self) -> str:
        """The name that was given."""
        return self._environment

    def set_tf_config(self) -> None:
        """Sets ``TF_CONFIG`` in every actor, so that a program there finds its place unchanged.

        Raises:
            ClusterPlatformError: If an actor is gone or does not answer.
        """
        cluster = self.cluster_spec()
        for job, actors in self._actors.items():
            for index, actor in enumerate(actors):
                config = TFConfig(cluster, job, index).to_json()
                _ask([actor], _set_variable, VARIABLE, config)


def _before(places: Sequence[tuple[str, str]], index: int) -> set[str]:
    return {address for _, address in places[:index]}


def _ask(actors: Sequence[Any], function: Any, *arguments: Any) -> list[Any]:
    """What `function` gives in each actor."""
    import ray.exceptions

    calls = [actor.__ray_call__.remote(function, *arguments) for actor in actors]
    try:
        return ray.get(calls, timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError as error:
        raise ClusterPlatformError(
            f"an actor of the cluster is gone or does not answer: {error}"
        ) from error


# -- in an actor -------------------------------------------------------------------------------


def _choose_place(actor: object) -> tuple[str, str]:
    import ray

    host = str(ray.util.get_node_ip_address())
    return ray.get_runtime_context().get_actor_id() or "", str(Address(host, free_port(host)))


def _set_variable(actor: object, name: str, value: str) -> None:
    os.environ[name] = value
