"""Pictures of where values live."""

import re
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicax as rx


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def test_the_components_of_a_per_replica_value_follow_one_another(two):
    drawing = rx.visualize_value(two.distribute_batch(np.ones((5, 3), np.float32)))
    assert repr(drawing).splitlines() == [
        "PerReplica float32 on 2 replicas",
        "  [0:3, 0:3] on CPU:0",
        "  [3:5, 0:3] on CPU:1",
    ]
    assert drawing.shape == (5, 3)


def test_scalars_and_logical_devices_are_drawn_too():
    strategy = rx.MirroredStrategy(logical_devices=4)
    value = strategy.experimental_distribute_values_from_function(lambda ctx: 1.0)
    assert repr(rx.visualize_value(value)).splitlines()[1:] == [
        "  [0:1] on CPU:0, CPU:1, CPU:2, CPU:3",
        "  [1:2] on CPU:4, CPU:5, CPU:6, CPU:7",
    ]


def test_every_copy_of_a_variable_is_listed(two):
    with two.scope():
        w = rx.Variable(np.ones((2, 3), np.float32), name="w")
        own = rx.Variable(0.0, synchronization=rx.VariableSynchronization.ON_READ, name="own")
    assert repr(rx.visualize_value(w)) == (
        "MirroredVariable 'w' float32[2, 3]\n  [0:2, 0:3] on CPU:0, CPU:1"
    )
    assert repr(rx.visualize_value(own)).splitlines()[1:] == [
        "  [0:1] on CPU:0",
        "  [1:2] on CPU:1",
    ]
    assert "CPU:0" in repr(rx.visualize_value(rx.Variable(1.0)))


def test_mirrored_values_and_arrays_are_drawn(two):
    total = two.run(lambda: rx.get_replica_context().all_reduce("SUM", jnp.ones(2)))
    assert repr(rx.visualize_value(total)) == "Mirrored float32[2]\n  [0:2] on CPU:0, CPU:1"
    assert repr(rx.visualize_value(jnp.ones(4))) == "Array float32[4]\n  [0:4] on CPU:0"


def test_a_picture_has_a_rectangle_for_each_block():
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 4), ("a", "b"))
    array = jax.device_put(jnp.ones((3, 4, 8)), NamedSharding(mesh, PartitionSpec(None, "a", "b")))
    drawing = rx.visualize_value(array)
    assert len(drawing.blocks) == 8
    root = ElementTree.fromstring(drawing.svg())
    rectangles = [node for node in root if node.tag.endswith("rect")]
    areas = [float(node.get("width")) * float(node.get("height")) for node in rectangles]
    assert len(areas) == 8
    np.testing.assert_allclose(areas, [480 * 240 / 8] * 8)
    assert drawing._repr_svg_() == drawing.svg()


def test_a_picture_is_saved_as_svg_or_png(two, tmp_path):
    drawing = rx.visualize_value(two.distribute_batch(np.ones(4, np.float32)))
    drawing.save(tmp_path / "value.svg")
    assert "CPU:1" in (tmp_path / "value.svg").read_text()
    drawing.save(tmp_path / "value.png")
    assert (tmp_path / "value.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=re.escape("ends with .svg or .png")):
        drawing.save(tmp_path / "value.pdf")


@pytest.mark.parametrize("value", [3, "text", None, np.ones(2)])
def test_what_lives_nowhere_is_refused(value):
    with pytest.raises(TypeError, match="expected a variable, a per-replica or mirrored value"):
        rx.visualize_value(value)


def test_a_tracer_is_refused():
    with pytest.raises(TypeError, match="outside of compiled functions"):
        jax.jit(rx.visualize_value)(jnp.ones(2))


def test_the_pieces_of_a_variable_are_drawn_with_their_devices():
    strategy = rx.MirroredStrategy(logical_devices=4)
    with strategy.scope():
        w = rx.Variable(np.ones((4, 8), np.float32), name="w", partition_dimensions=[2, 2])
        own = rx.Variable(
            np.ones(4, np.float32),
            name="own",
            synchronization=rx.VariableSynchronization.ON_READ,
            partition_dimensions=[4],
        )
    drawing = rx.visualize_value(w)
    assert repr(drawing).splitlines() == [
        "MirroredVariable 'w' float32[4, 8] in 2 x 2 pieces",
        "  [0:2, 0:4] on CPU:0, CPU:4",
        "  [0:2, 4:8] on CPU:1, CPU:5",
        "  [2:4, 0:4] on CPU:2, CPU:6",
        "  [2:4, 4:8] on CPU:3, CPU:7",
    ]
    assert len(ElementTree.fromstring(drawing.svg()).findall("{*}rect")) == 4
    lines = repr(rx.visualize_value(own)).splitlines()
    assert lines[0] == "SyncOnReadVariable 'own' float32[4] in 4 pieces"
    assert lines[1:] == [f"  [{i // 4}:{i // 4 + 1}, {i % 4}:{i % 4 + 1}] on CPU:{i}"
                         for i in range(8)]  # fmt: skip


def test_a_description_lists_the_variables_in_pieces():
    strategy = rx.MirroredStrategy(logical_devices=4, partition_rules={"kernel": [1, 4]})
    with strategy.scope():
        made = [
            rx.Variable(np.ones((3, 8), np.float32), name="mlp/kernel"),
            rx.Variable(np.ones(8, np.float32), name="mlp/bias"),
        ]
    assert strategy.describe().splitlines()[4:] == [
        "partitioned variable  shape   pieces  on each device",
        "mlp/kernel            (3, 8)  1 x 4   (3, 2)",
    ]
    assert len(strategy.describe().splitlines()[:4]) == 4
    del made
    assert "partitioned" not in strategy.describe()
