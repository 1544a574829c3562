"""The model of time as tables: every figure here can be worked out by hand."""

import dataclasses
import math

import pytest

from replicax.costs.collectives import LOGICAL_DEVICES, Collective
from replicax.costs.machines import ClusterTopology, Curve, Link, Machine
from replicax.costs.timing import Product, StepTime, Work, collective_time, step_time

MB = 1_000_000
MACHINE = Machine(
    name="round figures",
    peak_flops={"float32": 1e12, "bfloat16": 2e12},
    memory_bandwidth=1e11,
    memory_bytes=1e10,
    devices_per_host=4,
    within=Link(1e10, 1e-6),
    between=Link(1e9, 1e-5),
)
LATE = dataclasses.replace(MACHINE, within=Link(1e10, 1e-3))  # latency is all that matters
TORUS = dataclasses.replace(
    MACHINE, devices_per_host=16, within=Link(1e10, 1e-6, axes=2), linked_hosts=4
)
SHARED = dataclasses.replace(MACHINE, shared_compute=True, between_workers=Link(5e8, 1e-4))


def all_reduce(num_bytes, size, **rest):
    return Collective("all-reduce", (num_bytes,), ("float32",), size, **rest)


def gather(num_bytes, size):
    return Collective("all-gather", (num_bytes,), ("float32",), size)


def scatter(num_bytes, size):
    return Collective("reduce-scatter", (num_bytes,), ("float32",), size)


def permute(num_bytes, size):
    return Collective("collective-permute", (num_bytes,), ("float32",), size)


def on(machine, hosts=1, **rest):
    return ClusterTopology(hosts=hosts, machine=machine, **rest)


@pytest.mark.parametrize(
    ("collective", "topology", "latency", "link"),
    [
        (all_reduce(MB, 1), on(MACHINE), 0, 0),  # alone
        (all_reduce(4 * MB, 4), on(MACHINE), 6e-6, 6e-4),  # ring: 2 * 3 / 4 of the bytes
        (all_reduce(4, 4), on(LATE), 4e-3, 8e-10),  # trees: 2 * log2(4) messages
        (gather(MB, 4), on(MACHINE), 3e-6, 3e-4),  # three parts of others
        (scatter(4 * MB, 4), on(MACHINE), 3e-6, 3e-4),  # three of four parts
        (permute(MB, 4), on(MACHINE), 1e-6, 1e-4),  # one message
        # Two hosts: scatter 3/4 inside, a quarter across by four devices that share the network,
        # where two devices send the whole of their part, gather 3/4 inside.
        (all_reduce(4 * MB, 8), on(MACHINE, 2), (3 + 20 + 3) * 1e-6, 3e-4 + 4e-3 + 3e-4),
        (scatter(4 * MB, 8), on(MACHINE, 2), (3 + 10) * 1e-6, 3e-4 + 2e-3),
        # A part of each from the other host, then parts of both hosts inside.
        (gather(MB, 8), on(MACHINE, 2), (10 + 3) * 1e-6, 4e-3 + 6e-4),
        # A torus of 4 by 4: 2 * (2 * 3) messages, and the bytes of a ring.
        (all_reduce(16 * MB, 16), on(TORUS), 12e-6, 3e-3),
        # Four hosts that are linked need no network.
        (all_reduce(64 * MB, 64), on(TORUS, 4), 28e-6, 12.6e-3),
    ],
)
def test_a_collective_takes_what_the_formulas_say(collective, topology, latency, link):
    travel = collective_time(collective, topology)
    assert travel.latency == pytest.approx(latency)
    assert travel.link == pytest.approx(link)


def test_every_collective_costs_something_beside_its_messages():
    machine = dataclasses.replace(MACHINE, collective_seconds=1e-3)
    assert collective_time(all_reduce(4, 4), on(machine)).latency == pytest.approx(1.004e-3)


def test_devices_of_one_replica_are_neighbours():
    """Two logical devices meet on their host, even if there are many."""
    pair = all_reduce(2 * MB, 2, over=LOGICAL_DEVICES)
    travel = collective_time(pair, on(MACHINE, 64, logical_devices=2))
    assert travel.link == pytest.approx(2e-4)


def test_the_groups_of_all_logical_devices_share_the_network():
    whole = collective_time(all_reduce(4 * MB, 8), on(MACHINE, 2))
    cut = collective_time(all_reduce(4 * MB, 4), on(MACHINE, 2, logical_devices=2))
    # Each of two groups sends half as many parts, of twice the size.
    assert cut.link == pytest.approx(2e-4 + 8e-3 + 2e-4)
    assert cut.link > whole.link


def test_devices_that_share_a_processor_send_through_one_memory():
    travel = collective_time(all_reduce(4 * MB, 4), on(SHARED))
    assert travel.latency == pytest.approx(4e-6)
    assert travel.link == pytest.approx(4 * 6e-4)


def test_processes_of_one_host_have_a_link_of_their_own():
    travel = collective_time(all_reduce(4 * MB, 4), on(SHARED, workers_per_host=4))
    assert travel.link == pytest.approx(4 * 6 * MB / 5e8)


def test_operands_travel_one_after_the_other_where_a_processor_is_shared():
    many = dataclasses.replace(all_reduce(4, 4), operand_bytes=(4,) * 10)
    assert collective_time(many, on(SHARED)).latency == pytest.approx(40e-6)
    assert collective_time(many, on(MACHINE)).latency < 10e-6


LARGE = Product(flops=1e9, num_bytes=1e6, result_bytes=5e5, dtype="float32")  # 1 ms, or 10 us
WIDE = Product(flops=1e6, num_bytes=1e8, result_bytes=5e7, dtype="float32")  # 1 us, or 1 ms


@pytest.mark.parametrize(
    ("work", "compute", "memory"),
    [
        (Work(products=(LARGE,)), 1e-3, 0),
        (Work(products=(WIDE,)), 0, 1e-3),
        (Work(products=(LARGE, dataclasses.replace(WIDE, count=3))), 1e-3, 3e-3),
        (Work(products=(dataclasses.replace(LARGE, dtype="bfloat16"),)), 5e-4, 0),
        (Work(moved_bytes=1e8), 0, 1e-3),
        (Work(strided_bytes=1e8), 0, 1e-3),
        (Work(elements=1e9, element_bytes=1e8), 0, 1e-3),  # the rate of operations is not known
    ],
)
def test_computation_is_a_roofline(work, compute, memory):
    time = step_time(work, on(MACHINE))
    assert (time.compute, time.memory) == (pytest.approx(compute), pytest.approx(memory))


def test_slow_elementwise_operations_are_computation():
    machine = dataclasses.replace(MACHINE, vector_flops=1e11)
    time = step_time(Work(elements=1e9, element_bytes=1e8), on(machine))
    assert (time.compute, time.memory) == (pytest.approx(1e-2), 0)


def test_a_processor_that_is_shared_does_the_work_of_all_its_devices():
    one = step_time(Work(products=(LARGE,)), on(SHARED, devices_per_host=1))
    four = step_time(Work(products=(LARGE,)), on(SHARED))
    assert four.compute == pytest.approx(4 * one.compute)
    assert step_time(Work(products=(LARGE,)), on(MACHINE)).compute == pytest.approx(one.compute)


def test_small_products_have_a_rate_of_their_own():
    machine = dataclasses.replace(MACHINE, peak_flops={"float32": Curve((1e6, 1e9), (1e10, 1e12))})
    small = dataclasses.replace(LARGE, flops=1e6, count=1000)
    assert step_time(Work(products=(small,)), on(machine)).compute == pytest.approx(0.1)


@pytest.mark.parametrize(("size", "memory"), [(2**25 - 1, 0.0), (2**25, 2**25 / 1e9)])
def test_large_temporaries_are_new_memory_on_a_cpu(size, memory):
    machine = dataclasses.replace(MACHINE, fresh_bandwidth=1e9)
    time = step_time(Work(temporary_bytes=size), on(machine))
    assert time.memory == pytest.approx(memory)


@pytest.mark.parametrize(
    ("overlap", "num_collectives", "hidden"),
    [
        (0.0, 2, 0.0),  # devices that do one thing at a time
        (1.0, 1, 0.0),  # the only one waits for the last gradient
        (1.0, 2, 5e-4),  # the first travels while the device computes
        (0.1, 2, 1e-4),  # as long as there is time
    ],
)
def test_what_is_hidden_is_never_the_last_collective(overlap, num_collectives, hidden):
    machine = dataclasses.replace(MACHINE, overlap=overlap, within=Link(1e10, 0.0))
    sent = (all_reduce(10 * MB // 3, 4),) * num_collectives  # half a millisecond each
    time = step_time(Work(products=(LARGE,), collectives=sent), on(machine))
    assert time.hidden == pytest.approx(hidden, rel=1e-3)
    assert time.seconds == pytest.approx(1e-3 + num_collectives * 5e-4 - hidden, rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "waiting"),
    [(math.inf, 0.0), (2e5, 0.0), (1e5, 0.0), (5e4, 1e-3)],
)
def test_input_counts_where_it_is_slower_than_the_step(rate, waiting):
    time = step_time(Work(products=(LARGE,)), on(MACHINE), examples=100, examples_per_second=rate)
    assert time.input == pytest.approx(waiting)


def test_a_batch_travels_to_its_device_while_the_step_before_runs():
    machine = dataclasses.replace(MACHINE, host_link=1e9)
    time = step_time(Work(products=(LARGE,), batch_bytes=3e6), on(machine))
    assert time.input == pytest.approx(2e-3)


def test_launching_is_hidden_unless_the_processor_is_shared():
    ahead = dataclasses.replace(MACHINE, launch_seconds=2e-3)
    assert step_time(Work(products=(LARGE,)), on(ahead)).launch == pytest.approx(1e-3)
    shared = dataclasses.replace(ahead, shared_compute=True, launch_seconds_per_device=1e-4)
    assert step_time(Work(products=(LARGE,)), on(shared)).launch == pytest.approx(2.3e-3)


@pytest.mark.parametrize("kind", ["compute", "memory", "link", "latency", "input", "launch"])
def test_the_limit_is_what_takes_most(kind):
    parts = dict.fromkeys(("compute", "memory", "link", "latency", "input", "launch"), 1.0)
    assert StepTime(**{**parts, kind: 2.0}).limit == kind


def test_what_is_hidden_limits_nothing():
    assert StepTime(compute=2.0, memory=0.0, link=10.0, hidden=10.0).limit == "compute"


def test_more_hosts_never_take_less_time_for_the_same_bytes():
    times = [
        collective_time(all_reduce(100 * MB, 4 * hosts), on(MACHINE, hosts)).seconds
        for hosts in (1, 2, 4, 16, 64, 256, 1024)
    ]
    assert times == sorted(times)
