"""Steps on machines that are not here, compared with programs that are."""

import itertools
import json
import xml.etree.ElementTree

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.costs.machines import ClusterTopology, Machine
from replicax.costs.samples import SampledStep, SimulationError
from replicax.costs.scaling import memory_of, work_of
from replicax.costs.simulate import Simulation
from tests.contracts.strategies import mirrored
from tests.costs.models import training_step

POD = ClusterTopology(hosts=64, machine="dgx-h100")


def sharded(count, stage):
    devices = [f"CPU:{i}" for i in range(count)]
    sharding = rx.experimental.Sharding(stage=stage) if stage else None
    return rx.MirroredStrategy(devices, sharding=sharding)


def cpu_host(**rest):
    """A host like that of the tests, with as many devices as one likes."""
    link = rx.costs.Link(1e10, 1e-5)
    figures = {
        "name": "a CPU",
        "peak_flops": {"float32": 1e11},
        "memory_bandwidth": 1e10,
        "memory_bytes": 1e10,
        "devices_per_host": 64,
        "within": link,
        "between": link,
        "shared_compute": True,
    }
    return Machine(**{**figures, **rest})


def planned(strategy, batch_per_replica):
    """What XLA has planned for one device."""
    step, batch = training_step(strategy, batch_per_replica)
    memory = step.lower_run(strategy, batch).compile().memory_analysis()
    kept = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + kept + memory.temp_size_in_bytes


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kept", ["per_replica", "global"])
def test_memory_is_what_xla_plans_for_another_number_of_replicas(stage, kept):
    strategy = sharded(2, stage)
    step, batch = training_step(strategy)
    topology = ClusterTopology(hosts=1, machine=cpu_host(), devices_per_host=8, stage=stage)
    found = rx.simulate(step, batch, strategy=strategy, topology=topology, hosts=(), batch=kept)
    other = sharded(8, stage)
    size = 16 if kept == "per_replica" else 4
    assert found.chosen.batch == size
    expected = planned(other, size)
    # Parts of gradients that are still larger here are not told from other temporaries in stage 3.
    assert found.chosen.memory.total == pytest.approx(expected, rel=0.15 if stage == 3 else 0.05)
    assert not found.chosen.is_estimated


def test_a_thousand_hosts_compile_nothing_for_their_devices():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    compiled = []

    def note(event, seconds, **fields):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(fields)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        found = rx.simulate(step, batch, strategy=strategy, topology=POD)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert [one.topology.num_replicas for one in found.predictions][-1] == 8192
    # The step with its own batch and with another one, each for the two devices at hand.
    assert len(compiled) <= 2


def test_nothing_runs_and_the_step_stays_as_it_was():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    strategy.run(step, args=(batch,))
    traces = step.trace_count
    rx.simulate(step, batch, strategy=strategy, topology=POD, hosts=(1,), batch="global")
    assert step.trace_count == traces
    before = strategy.run(step, args=(batch,))
    assert np.isfinite(strategy.reduce("SUM", before, axis=None))
    assert step.trace_count == traces


@pytest.mark.parametrize(("here", "stage"), [(0, 1), (0, 2), (0, 3), (1, 3), (3, 0)])
def test_rules_for_another_stage_name_the_collectives_of_a_step_of_that_stage(here, stage):
    def kinds(at_hand):
        strategy = sharded(2, at_hand)
        step, batch = training_step(strategy)
        sampled = SampledStep(step, (batch,), strategy)
        topology = ClusterTopology(hosts=1, machine=cpu_host(), devices_per_host=8, stage=stage)
        work = work_of(sampled, topology, 16)
        sent = {}
        for one in work.collectives:
            assert one.group_size == 8
            sent[one.kind] = sent.get(one.kind, 0) + one.num_bytes * one.times
        memory = memory_of(sampled, topology, 16)
        return sent, memory

    by_rule, ruled = kinds(here)
    as_made, made = kinds(stage)
    assert by_rule.keys() == as_made.keys()
    for kind, num_bytes in as_made.items():
        assert by_rule[kind] == pytest.approx(num_bytes, rel=0.02)
    assert (ruled.variables, ruled.slots) == (made.variables, made.slots)
    # What is left of temporaries in stage 3 says little of what they would be without it.
    assert ruled.total == pytest.approx(made.total, rel=0.3 if here == 3 else 0.1)


def test_what_is_sent_does_not_depend_on_how_many_replicas_are_at_hand():
    found = []
    for count in (2, 4):
        strategy = mirrored(count)
        step, batch = training_step(strategy)
        found.append(rx.simulate(step, batch, strategy=strategy, topology=POD, hosts=(1, 8)))
    times = [[one.time.seconds for one in each.predictions] for each in found]
    assert times[0] == pytest.approx(times[1], rel=1e-3)


def test_the_global_batch_is_divided_and_a_replica_gets_one_example_at_least():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    found = rx.simulate(step, batch, strategy=strategy, topology=POD, hosts=(1, 2), batch="global")
    assert [one.batch for one in found.predictions] == [4, 2, 1]
    assert {one.global_batch for one in found.predictions} == {32}
    assert "where there are more replicas than examples, some have no example" in found.notes


def test_efficiency_is_a_part_of_that_of_the_fewest_hosts():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    found = rx.simulate(step, batch, strategy=strategy, topology=POD)
    efficiencies = [one.efficiency for one in found.predictions]
    assert efficiencies[0] == 1.0
    assert efficiencies == sorted(efficiencies, reverse=True)
    first = found.first_limit
    assert first is not None and first.topology.hosts == 2 and first.limit == "latency"


def test_a_slow_reader_is_the_limit():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    found = rx.simulate(
        step, batch, strategy=strategy, topology=POD, hosts=(), examples_per_second=1000
    )
    assert found.chosen.limit == "input"
    assert found.chosen.time.seconds == pytest.approx(16 * 8 / 1000)


def test_what_does_not_fit_is_said_with_the_figures():
    small = cpu_host(memory_bytes=1e6, shared_compute=False, devices_per_host=8)
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    found = rx.simulate(
        step,
        batch,
        strategy=strategy,
        topology=ClusterTopology(hosts=1, machine=small),
        hosts=(1, 2),
    )
    assert found.chosen.limit == "does not fit"
    assert found.chosen.largest_model < 1
    assert "the first limit is memory: on 1 hosts a device needs" in str(found)


def test_the_largest_batch_is_about_what_fits():
    host = cpu_host(memory_bytes=1.5e6, shared_compute=False)
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    topology = ClusterTopology(hosts=1, machine=host, devices_per_host=8)
    most = rx.simulate(
        step, batch, strategy=strategy, topology=topology, hosts=()
    ).chosen.largest_batch
    assert planned(strategy, most) == pytest.approx(1.5e6, rel=0.2)


def test_devices_that_share_a_processor_share_its_memory():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    topology = ClusterTopology(hosts=1, machine=cpu_host(), devices_per_host=8)
    found = rx.simulate(step, batch, strategy=strategy, topology=topology, hosts=())
    assert found.chosen.capacity == 1e10 / 8


def test_a_table_a_notebook_and_json_show_the_same_figures():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    found = rx.simulate(step, batch, strategy=strategy, topology=POD, hosts=(1, 1024))
    assert isinstance(found, Simulation)
    text, page, data = str(found), found._repr_html_(), json.loads(found.to_json())
    assert [row["hosts"] for row in data["predictions"]] == [1, 64, 1024]
    assert data["chosen"]["replicas"] == 512
    for shown in ("8,192", "512 replicas on 64 hosts of type dgx-h100, nothing split"):
        assert shown in text and shown in page
    picture = xml.etree.ElementTree.fromstring(found.svg())
    circles = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3 and found.svg() in page
    sums = data["chosen"]["seconds"]
    kinds = ("compute", "memory", "exposed_communication", "input", "launch")
    assert sum(sums[kind] for kind in kinds) == pytest.approx(data["chosen"]["step_seconds"])


def test_a_step_of_one_replica_does_not_say_what_replicas_send():
    strategy = mirrored(1)
    step, batch = training_step(strategy)
    with pytest.raises(SimulationError, match="has 1 replica here, so its program does not say"):
        rx.simulate(step, batch, strategy=strategy, topology=POD)


def test_a_step_of_one_batch_size_is_refused_for_another():
    strategy = mirrored(2)
    with strategy.scope():
        total = rx.Variable(np.zeros((4, 3), np.float32), aggregation=rx.VariableAggregation.SUM)

    @rx.function
    def step(x):
        total.assign_add(x)

    batch = strategy.distribute_batch(np.ones((8, 3), np.float32))
    with pytest.raises(SimulationError, match="has 4 examples a replica here, and cannot be"):
        rx.simulate(step, batch, strategy=strategy, topology=POD, batch="global")
    found = rx.simulate(step, batch, strategy=strategy, topology=POD)
    assert any("cannot be traced with 32 examples" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"topology": 64}, TypeError, "topology is 64; expected a ClusterTopology"),
        ({"batch": "both"}, ValueError, "batch is 'both'; expected 'per_replica' or 'global'"),
        ({"hosts": (0,)}, ValueError, r"hosts is \(0,\); expected ints of 1 or more"),
    ],
)
def test_wrong_arguments_are_refused(change, error, match):
    with pytest.raises(error, match=match):
        rx.simulate(lambda x: x, 1.0, **{"topology": POD, **change})


def test_a_search_ranks_what_fits_and_keeps_the_rest_apart():
    host = cpu_host(memory_bytes=0.8e6, shared_compute=False, devices_per_host=8)
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    found = rx.search_layout(
        step, batch, strategy=strategy, machine=host, hosts=(1, 4), logical_devices=(1, 2, 3)
    )
    rates = [one.examples_per_second for one in found.layouts]
    assert rates == sorted(rates, reverse=True) and found.layouts and found.too_large
    assert all(one.fits for one in found.layouts)
    assert not any(one.fits for one in found.too_large)
    layouts = {
        (one.topology.hosts, one.topology.logical_devices, one.topology.stage)
        for one in (*found.layouts, *found.too_large)
    }
    # 24 logical devices are not to be had from 8 or 32 devices in threes.
    assert layouts == set(itertools.product((1, 4), (1, 2), (0, 1, 2, 3)))
    assert found.layouts[0].describe() in str(found)
    assert len(json.loads(found.to_json())["layouts"]) == len(found.layouts)
    assert any("rules stand for" in note for note in found.notes)


def test_a_search_of_a_machine_that_does_not_exist_names_the_nearest():
    with pytest.raises(ValueError, match=r"no machine 'tpu-v5'. Did you mean 'tpu-v5[ep]'"):
        rx.search_layout(lambda x: x, 1.0, machine="tpu-v5")


def test_pieces_divide_the_work_of_a_replica():
    strategy = mirrored(2)
    step, batch = training_step(strategy)
    whole, cut = (
        rx.simulate(
            step,
            batch,
            strategy=strategy,
            topology=ClusterTopology(hosts=1, machine="tpu-v5e", logical_devices=pieces),
            hosts=(),
        ).chosen
        for pieces in (1, 2)
    )
    assert cut.memory.temporaries == pytest.approx(whole.memory.temporaries / 2)
    assert cut.memory.variables == whole.memory.variables  # which this step does not cut
    assert cut.is_estimated and not whole.is_estimated


def test_a_step_that_keeps_its_variables_needs_the_memory_of_both_with_any_batch():
    strategy = mirrored(2)
    donating, batch = training_step(strategy)
    keeping = rx.function(donating.python_function, donate=False)
    topology = ClusterTopology(hosts=1, machine=cpu_host(), devices_per_host=8)
    totals = [
        rx.simulate(
            step, batch, strategy=strategy, topology=topology, hosts=(), batch="global"
        ).chosen.memory
        for step in (donating, keeping)
    ]
    state = totals[0].variables + totals[0].slots
    assert totals[1].outputs - totals[0].outputs == pytest.approx(state, rel=0.01)
