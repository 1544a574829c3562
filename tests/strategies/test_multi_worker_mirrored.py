"""`MultiWorkerMirroredStrategy` as far as one process shows it; see also tests/multiprocess."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.backend import workers
from replicax.strategies import multi_worker_mirrored
from tests.backend.fresh_process import run_fresh
from tests.strategies.test_extended_reduce import operands_of_all_reduces

Options = rx.experimental.CommunicationOptions
Implementation = rx.experimental.CommunicationImplementation


def set_config(monkeypatch, cluster, task_type=None, index=0):
    config = {"cluster": cluster}
    if task_type is not None:
        config["task"] = {"type": task_type, "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


ALONE = {
    "no TF_CONFIG": None,
    "one worker": ({"worker": ["localhost:1"]}, "worker", 0),
    "a chief alone": ({"chief": ["localhost:1"]}, "chief", 0),
    "one worker beside a ps": ({"worker": ["localhost:1"], "ps": ["localhost:2"]}, "worker", 0),
    "a ps": ({"worker": ["localhost:1", "localhost:3"], "ps": ["localhost:2"]}, "ps", 0),
    "an evaluator": ({"worker": ["localhost:1", "localhost:3"]}, "evaluator", 0),
}


@pytest.mark.parametrize("case", ALONE)
def test_a_process_that_has_nobody_to_join_works_without_a_network(monkeypatch, case):
    if ALONE[case] is not None:
        set_config(monkeypatch, *ALONE[case])
    strategy = rx.MultiWorkerMirroredStrategy()
    assert workers.current() is None
    assert strategy.num_replicas_in_sync == 8
    assert strategy.is_chief
    total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    assert float(total) == 8.0


def test_what_the_documents_ask_of_the_task_type_can_be_asked(monkeypatch):
    set_config(monkeypatch, {"worker": ["localhost:1", "localhost:3"], "ps": ["h:2"]}, "ps")
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    assert strategy.cluster_resolver.task_type == "ps"
    assert strategy.cluster_resolver.task_id == 0


def test_a_resolver_that_is_given_comes_before_the_environment(monkeypatch):
    set_config(monkeypatch, {"worker": ["localhost:1", "localhost:3"]}, "worker", 1)
    resolver = rx.cluster_resolver.SimpleClusterResolver(
        rx.cluster_resolver.ClusterSpec({"worker": ["localhost:9"]}),
        task_type="worker",
        task_id=0,
    )
    strategy = rx.MultiWorkerMirroredStrategy(resolver)
    assert strategy.cluster_resolver is resolver
    assert strategy.is_chief


def test_attributes_of_a_strategy_of_several_workers():
    extended = rx.MultiWorkerMirroredStrategy().extended
    assert extended.experimental_between_graph
    assert extended.experimental_should_init
    assert not extended.experimental_require_static_shapes
    assert extended.should_checkpoint
    assert extended.should_save_summary
    assert extended.worker_devices == tuple(f"CPU:{i}" for i in range(8))


def test_joining_after_jax_has_started_is_refused(monkeypatch):
    set_config(monkeypatch, {"worker": ["localhost:1", "localhost:3"]}, "worker", 1)
    with pytest.raises(RuntimeError, match=r"after JAX had started.*Create it first"):
        rx.MultiWorkerMirroredStrategy()


def test_a_cluster_without_a_task_is_refused(monkeypatch):
    resolver = rx.cluster_resolver.SimpleClusterResolver(
        rx.cluster_resolver.ClusterSpec({"worker": ["localhost:1", "localhost:3"]}),
        task_type=None,
    )
    with pytest.raises(ValueError, match="2 workers, and nothing says which of them"):
        rx.MultiWorkerMirroredStrategy(resolver)


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("bytes_per_pack", "operands"), [(0, 1), (400, 3), (800, 2)])
def test_bytes_per_pack_decides_the_operands_of_every_reduction(bytes_per_pack, operands):
    options = Options(bytes_per_pack=bytes_per_pack)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    values = [jnp.full(100, 1.0 + i) for i in range(3)]

    @rx.function
    def step(x):
        gradients = [value * x for value in values]
        return rx.get_replica_context().all_reduce("SUM", gradients)

    value = strategy.experimental_distribute_values_from_function(lambda ctx: jnp.float32(1))
    program = step.lower_run(strategy, value).compile().as_text()
    assert operands_of_all_reduces(program) == operands


def test_a_library_that_the_devices_do_not_have_is_refused():
    with pytest.raises(ValueError, match=r"NCCL needs GPUs.*'cpu'.*AUTO"):
        rx.MultiWorkerMirroredStrategy(
            communication_options=Options(implementation=Implementation.NCCL)
        )
    with pytest.raises(ValueError, match="NCCL needs GPUs"):
        rx.experimental.MultiWorkerMirroredStrategy(Implementation.NCCL)
    for fine in (Implementation.AUTO, Implementation.RING):
        assert rx.experimental.MultiWorkerMirroredStrategy(fine).num_replicas_in_sync == 8


@pytest.mark.parametrize("options", ["fast", 3, object()])
def test_options_of_another_kind_are_refused(options):
    with pytest.raises(TypeError, match="expected a CommunicationOptions"):
        rx.MultiWorkerMirroredStrategy(communication_options=options)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deterministic_sum_adds_in_the_order_of_the_replicas(deterministic):
    options = Options(deterministic=deterministic)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    numbers = np.asarray([1e8, 1.0, -1e8, 1.0, 1e-3, 3e7, -3e7, 0.1], np.float32)
    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: numbers[ctx.replica_id_in_sync_group]
    )
    in_order = np.float32(0)
    for number in numbers:
        in_order = np.float32(in_order + number)
    step = rx.function(lambda x: rx.get_replica_context().all_reduce("SUM", x))
    program = step.lower_run(strategy, value).as_text()
    assert ("all_gather" in program) == deterministic
    assert ("all_reduce" in program) != deterministic
    if deterministic:
        assert strategy.run(step, args=(value,)).numpy() == in_order
        assert np.float32(strategy.reduce("SUM", value, axis=None)) == in_order


def test_the_collective_timeout_reaches_the_compiler():
    output = run_fresh(
        """
        import os
        from replicax.backend import joining
        joining.limit_collectives(7.0)
        print(os.environ["XLA_FLAGS"])
        os.environ["XLA_FLAGS"] = "--xla_cpu_collective_timeout_seconds=3"
        joining.limit_collectives(7.0)
        print(os.environ["XLA_FLAGS"])
        """
    )
    assert output.split() == [f"--xla_cpu_collective_timeout_seconds={n}" for n in (7, 3)]


# -- scope -------------------------------------------------------------------------------------


def test_where_the_devices_are_accelerators_eager_arrays_in_the_scope_go_to_the_cpu():
    scope = multi_worker_mirrored._ScopeOnHost(rx.MirroredStrategy(["CPU:1"]).scope())
    first, other = jax.devices()[0], jax.devices()[2]
    with jax.default_device(other):
        with scope as strategy, scope:  # entered twice
            assert rx.get_strategy() is strategy
            assert jnp.zeros(2).devices() == {first}
        assert jnp.zeros(2).devices() == {other}
    assert not rx.has_strategy()
