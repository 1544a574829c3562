"""The table of machines, machines of one's own, and topologies."""

import dataclasses
import json
import math

import pytest

import replicax as rx
from replicax.costs.machines import MACHINES, ClusterTopology, Curve, Link, Machine, machine_of

OWN = {
    "name": "own",
    "peak_flops": {"float32": 1e12, "bfloat16": 4e12},
    "memory_bandwidth": 1e11,
    "memory_bytes": 1e10,
    "devices_per_host": 4,
    "within": Link(1e10, 1e-6),
    "between": Link(1e9, 1e-5),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_named_machine_has_possible_figures_and_their_sources(name):
    machine = MACHINES[name]
    assert machine.name == name
    # Faster than memory would be a link of another kind, slower than a network a mistake of units.
    assert 1e9 < machine.between.bandwidth < machine.memory_bandwidth
    assert machine.within.bandwidth < machine.memory_bandwidth
    assert 1e13 < machine.peak_flops["float32"] <= machine.peak_flops["bfloat16"] < 1e16
    assert 1e10 < machine.memory_bytes < 1e12
    assert 0 < machine.within.latency < machine.between.latency < 1e-4
    assert "data sheet" in machine.source or "documentation" in machine.source
    assert "nominal" in machine.source


def test_the_figures_are_those_of_the_data_sheets():
    h100, v5e = MACHINES["dgx-h100"], MACHINES["tpu-v5e"]
    assert (h100.peak_flops["bfloat16"], h100.memory_bandwidth) == (989e12, 3350e9)
    assert h100.devices_per_host * 50e9 == h100.between.bandwidth  # 400 Gb/s for each GPU
    assert (v5e.peak_flops["bfloat16"], v5e.memory_bytes) == (197e12, 16e9)
    assert v5e.linked_hosts * v5e.devices_per_host == 256


@pytest.mark.parametrize("machine", [*MACHINES.values(), Machine(**OWN)], ids=lambda one: one.name)
def test_json_gives_an_equal_machine(machine, tmp_path):
    assert Machine.from_json(machine.to_json()) == machine
    json.loads(machine.to_json(), parse_constant=pytest.fail)  # no Infinity, which is no JSON
    machine.save(tmp_path / "machine.json")
    assert Machine.load(tmp_path / "machine.json") == machine


def test_a_measured_machine_keeps_its_curves_and_links_in_json():
    curve = Curve((1.0, 2.0), (3.0, 4.0))
    machine = Machine(
        **{**OWN, "peak_flops": {"float32": curve}, "memory_bandwidth": curve},
        between_workers=Link(2e9, 3e-5),
    )
    assert Machine.from_json(machine.to_json()) == machine


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"name": "x"}', "this is no machine: 'peak_flops'. Write it with Machine.to_json"),
        ('{"nmae": "x"}', r"this is no machine: \['nmae'\] is not one of its fields"),
        ("[]", r"this is no machine: \[\] is not one of its fields"),
    ],
)
def test_json_of_something_else_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        Machine.from_json(text)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"peak_flops": {"bfloat16": 1e12}}, r"has \['bfloat16'\]; expected 'float32' among them"),
        ({"peak_flops": {"float32": 0}}, r"peak_flops\['float32'\] is 0; expected a positive"),
        ({"memory_bandwidth": -1}, "memory_bandwidth is -1; expected a positive number of bytes"),
        ({"memory_bytes": 0}, "memory_bytes is 0; expected a positive number of bytes"),
        ({"devices_per_host": 0}, "devices_per_host is 0; expected an int of 1 or more"),
        ({"devices_per_host": 1.5}, "devices_per_host is 1.5; expected an int of 1 or more"),
        ({"compute_efficiency": 1.2}, "compute_efficiency is 1.2; expected a part of 1"),
        ({"overlap": -0.1}, "overlap is -0.1; expected a part of 1, or 0"),
        ({"launch_seconds": -1.0}, "launch_seconds is -1.0; expected seconds, 0 or more"),
    ],
)
def test_impossible_figures_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        Machine(**{**OWN, **change})


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Link(0, 1e-6), "bandwidth is 0; expected a positive number of bytes a second"),
        (lambda: Link(1e9, -1.0), "latency is -1.0; expected seconds, 0 or more"),
        (lambda: Link(1e9, 0.0, axes=4), "axes is 4; expected 1, 2 or 3"),
        (lambda: Curve((), ()), "a curve has 0 sizes and 0 rates; expected one rate for each"),
        (lambda: Curve((2.0, 1.0), (1.0, 1.0)), "expected ascending numbers"),
        (lambda: Curve((1.0,), (0.0,)), "a rate of a curve is 0.0; expected a positive number"),
    ],
)
def test_impossible_links_and_curves_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_missing_dtype_has_the_rate_of_float32_and_efficiency_counts():
    machine = Machine(**OWN, compute_efficiency=0.5)
    assert machine._flops_per_second("float64", 1e9) == 0.5e12
    assert machine._flops_per_second("bfloat16", 1e9) == 2e12


def test_a_curve_is_straight_between_its_points_and_flat_beyond():
    curve = Curve((1.0, 3.0, 4.0), (10.0, 20.0, 5.0))
    assert [curve.at(x) for x in (0.1, 1.0, 2.0, 3.0, 3.5, 9.0)] == [10, 10, 15, 20, 12.5, 5]


def test_a_mistyped_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"no machine 'dgxh100'. Did you mean 'dgx-h100'\?"):
        machine_of("dgxh100")
    with pytest.raises(ValueError, match=r"no machine 'zzz'. Known are aws-p4d, aws-p5, dgx"):
        ClusterTopology(hosts=1, machine="zzz")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"hosts": 0}, "hosts is 0; expected an int of 1 or more"),
        ({"stage": 4}, "stage is 4; expected 0, 1, 2 or 3"),
        ({"stage": True}, "stage is True; expected 0, 1, 2 or 3"),
        ({"devices_per_host": 9}, "devices_per_host is 9, but a host of type 'own' has 4"),
        ({"logical_devices": 3}, "8 devices do not divide into replicas of 3 logical devices: 2"),
        ({"workers_per_host": 3}, "4 devices on each host do not divide among 3 workers"),
    ],
)
def test_devices_that_cannot_be_divided_so_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        ClusterTopology(**{"hosts": 2, "machine": Machine(**OWN), **change})


def test_a_topology_counts_and_describes_itself():
    one = rx.costs.ClusterTopology(hosts=1, machine=Machine(**OWN), devices_per_host=1, stage=3)
    assert one.describe() == (
        "1 replica on 1 host of type own, slots, gradients and parameters split"
    )
    more = dataclasses.replace(one, hosts=2048, devices_per_host=4, logical_devices=2)
    assert (more.num_devices, more.num_replicas) == (8192, 4096)
    assert more.describe().startswith("4,096 replicas of 2 logical devices on 2,048 hosts")


def test_a_machine_without_a_limit_says_so():
    assert Machine(**OWN).host_link == math.inf
