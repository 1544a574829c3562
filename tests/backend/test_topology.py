"""The grid of devices, and replicas that span several of them."""

import types

import numpy as np
import pytest

import replicax.tf as tf
from replicax.backend.device_assignment import DeviceAssignment, DeviceOrderMode
from replicax.backend.topology import Topology, grid_shape
from tests.backend.fresh_process import run_fresh

TWO_TASKS = Topology(
    mesh_shape=[1, 1, 2, 2],
    device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1]], [[0, 0, 1, 0], [0, 0, 1, 1]]],
)


@pytest.fixture
def eight():
    return tf.tpu.experimental.initialize_tpu_system(None)


@pytest.mark.parametrize(
    ("num_devices", "shape"),
    [
        (1, [1, 1, 1, 1]),
        (2, [1, 1, 1, 2]),
        (4, [1, 1, 2, 2]),
        (8, [1, 2, 2, 2]),
        (16, [2, 2, 2, 2]),
        (32, [2, 2, 2, 4]),
        (3, [3, 1, 1, 1]),
        (12, [3, 1, 2, 2]),
    ],
)
def test_devices_without_places_get_a_grid_of_powers_of_two(num_devices, shape):
    assert grid_shape(num_devices) == shape


def test_the_devices_of_this_machine_are_a_grid_in_their_order(eight):
    assert eight.mesh_shape.tolist() == [1, 2, 2, 2]
    assert (eight.mesh_rank, eight.num_tasks, eight.num_tpus_per_task) == (4, 1, 8)
    assert not eight.missing_devices.any()
    for number, place in enumerate(eight.device_coordinates[0]):
        assert eight.tpu_device_ordinal_at_coordinates(place) == number
        assert eight.tpu_device_name_at_coordinates(place) == f"/task:0/device:CPU:{number}"


def test_names_are_those_that_devices_have_here():
    output = run_fresh(
        """
        import replicax as rx, replicax.tf as tf
        rx.set_virtual_devices(2, kind="TPU")
        topology = tf.tpu.experimental.initialize_tpu_system()
        name = topology.tpu_device_name_at_coordinates([0, 0, 0, 1])
        with tf.device(name):
            print(name, tf.zeros(2).devices())
        """
    )
    assert output.startswith("/task:0/device:TPU:1")
    assert "id=1" in output


def test_places_tell_tasks_and_hosts():
    assert TWO_TASKS.task_ordinal_at_coordinates([0, 0, 1, 0]) == 1
    assert TWO_TASKS.tpu_device_name_at_coordinates([0, 0, 1, 1], "worker") == (
        "/job:worker/task:1/device:TPU:1"
    )
    assert TWO_TASKS.cpu_device_name_at_coordinates([0, 0, 1, 1]) == "/task:1/device:CPU:0"


def test_a_topology_can_be_sent_to_another_process():
    again = Topology(TWO_TASKS.serialized())
    assert np.array_equal(again.device_coordinates, TWO_TASKS.device_coordinates)
    assert again.mesh_shape.tolist() == TWO_TASKS.mesh_shape.tolist()
    assert repr(again) == repr(TWO_TASKS)


WRONG_GRIDS = {
    "three dims": ([1, 1, 2], [[[0, 0, 0, 0]]], "mesh_shape is .*expected 4 sizes"),
    "an empty dim": ([1, 0, 1, 1], [[[0, 0, 0, 0]]], "expected 4 sizes of at least 1"),
    "no tasks": ([1, 1, 1, 1], [[0, 0, 0, 0]], r"has shape \(1, 4\); expected \(tasks"),
    "outside": ([1, 1, 1, 2], [[[0, 0, 0, 2]]], r"\[0, 0, 0, 2\], outside of a grid"),
    "twice": ([1, 1, 1, 2], [[[0, 0, 0, 1], [0, 0, 0, 1]]], "two devices have the coordinates"),
}


@pytest.mark.parametrize("case", WRONG_GRIDS)
def test_a_grid_that_cannot_be_is_refused(case):
    shape, coordinates, text = WRONG_GRIDS[case]
    with pytest.raises(ValueError, match=text):
        Topology(mesh_shape=shape, device_coordinates=coordinates)


def test_tasks_with_different_numbers_of_devices_are_refused(devices_of_tasks):
    with pytest.raises(ValueError, match=r"the tasks have \[2, 1\] devices; expected as many"):
        Topology._of_devices(devices_of_tasks(0, 0, 1))


@pytest.fixture
def devices_of_tasks():
    """Makes devices of other processes, which one process does not have."""
    return lambda *tasks: [
        types.SimpleNamespace(process_index=task, id=number, platform="cpu")
        for number, task in enumerate(tasks)
    ]


def test_a_place_without_a_device_is_named_as_missing():
    sparse = Topology(mesh_shape=[1, 1, 1, 3], device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 2]]])
    assert sparse.missing_devices.ravel().tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"no device at \[0, 0, 0, 1\]"):
        sparse.task_ordinal_at_coordinates([0, 0, 0, 1])


# -- assignment --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "num_replicas"), [([1, 1, 1, 2], 4), ([1, 2, 2, 2], 1), ([1, 1, 2, 2], 2), (None, 8)]
)
def test_blocks_cover_the_grid_without_overlap(eight, shape, num_replicas):
    assignment = DeviceAssignment.build(eight, shape, num_replicas=num_replicas)
    assert assignment.num_replicas == num_replicas
    assert assignment.num_cores_per_replica == 8 // num_replicas
    ordinals = [
        assignment.tpu_ordinal(replica, core)
        for replica in range(num_replicas)
        for core in range(8 // num_replicas)
    ]
    assert sorted(ordinals) == list(range(8))
    assert ordinals == list(range(8)) or shape is not None


def test_the_documented_shapes_are_neighbours(eight):
    assignment = DeviceAssignment.build(eight, computation_shape=[1, 1, 1, 2], num_replicas=4)
    names = [[assignment.tpu_device(r, c) for c in range(2)] for r in range(4)]
    assert names == [[f"/task:0/device:CPU:{2 * r + c}" for c in range(2)] for r in range(4)]
    assert assignment.host_device(3, 1) == "/task:0/device:CPU:0"
    assert assignment.topology is eight


def test_a_stride_puts_other_replicas_in_between(eight):
    assignment = DeviceAssignment.build(eight, [1, 1, 2, 1], [1, 1, 1, 2], num_replicas=4)
    assert sorted(
        tuple(assignment.coordinates(r, c)) for r in range(4) for c in range(2)
    ) == sorted(map(tuple, eight.device_coordinates[0].tolist()))


def test_a_ring_goes_from_neighbour_to_neighbour(eight):
    ring = DeviceAssignment.build(eight, [1, 2, 2, 2], device_order_mode=DeviceOrderMode.RING)
    places = ring.core_assignment[0]
    assert np.abs(np.diff(places, axis=0)).sum(axis=1).tolist() == [1] * 7


def test_replicas_are_found_by_task():
    assignment = DeviceAssignment.build(TWO_TASKS, [1, 1, 1, 2], num_replicas=2)
    assert assignment.lookup_replicas(0, 1) == [0]
    assert assignment.lookup_replicas(1, 0) == [1]
    for task, core in ((2, 0), (0, 2), (0, -1)):
        with pytest.raises(ValueError, match=f"logical device {core} on task {task}"):
            assignment.lookup_replicas(task, core)


WRONG_BLOCKS = {
    "too large": ({"computation_shape": [1, 1, 1, 4]}, r"\[1, 1, 1, 4\] of the grid.*\[1, 2, 2, 2"),
    "too wide": (
        {"computation_shape": [1, 1, 1, 2], "computation_stride": [1, 1, 1, 2]},
        r"stride \[1, 1, 1, 2\] takes \[1, 1, 1, 4\]",
    ),
    "too many": ({"num_replicas": 9}, "num_replicas is 9; .*from 1 to 8 fit"),
    "none": ({"num_replicas": 0}, "num_replicas is 0"),
    "three sizes": ({"computation_shape": [1, 2, 2]}, "computation_shape is .*expected 4 ints"),
    "floats": ({"computation_shape": [1.0, 1.0, 1.0, 2.0]}, "expected 4 ints"),
    "zero": ({"computation_stride": [0, 1, 1, 1]}, "computation_stride is .*at least 1"),
}


@pytest.mark.parametrize("case", WRONG_BLOCKS)
def test_blocks_that_do_not_fit_are_refused_with_both_numbers(eight, case):
    options, text = WRONG_BLOCKS[case]
    with pytest.raises(ValueError, match=text):
        DeviceAssignment.build(eight, **options)


def test_an_assignment_may_be_given_place_by_place(eight):
    assignment = DeviceAssignment(eight, [[[0, 1, 1, 1]], [[0, 0, 0, 0]]])
    assert assignment.tpu_ordinal(0, 0) == 7
    assert assignment.coordinates(1, 0) == (0, 0, 0, 0)


def test_an_assignment_needs_a_topology():
    with pytest.raises(ValueError, match="topology is 'all'; expected a Topology"):
        DeviceAssignment("all", [[[0, 0, 0, 0]]])


WRONG_ASSIGNMENTS = {
    "two dims": ([[0, 0, 0, 0]], r"has shape \(1, 4\); expected \(replicas"),
    "outside": ([[[0, 0, 0, 5]]], r"no device at \[0, 0, 0, 5\]"),
    "twice": ([[[0, 0, 0, 0]], [[0, 0, 0, 0]]], "assigned twice.*replica 0 and .*replica 1"),
}


@pytest.mark.parametrize("case", WRONG_ASSIGNMENTS)
def test_an_assignment_that_cannot_be_is_refused(eight, case):
    cores, text = WRONG_ASSIGNMENTS[case]
    with pytest.raises(ValueError, match=text):
        DeviceAssignment(eight, cores)


def test_connecting_and_shutting_down_do_nothing(eight):
    assert tf.config.experimental_connect_to_cluster(None) is None
    assert tf.tpu.experimental.shutdown_tpu_system(None) is None
    assert tf.tpu.experimental.initialize_tpu_system().num_tpus_per_task == 8
