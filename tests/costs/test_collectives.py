"""What devices send for a collective, and which collectives of a trace a program still has."""

import dataclasses
import math

import pytest

from replicax.costs.collectives import LOGICAL_DEVICES, Collective, Traffic, as_compiled

F32 = ("float32",)


def one(kind, *sizes, group=4, **options):
    return Collective(kind, sizes, F32, group, **options)


def all_reduced_in_a_ring(num_devices, size):
    """Plays it: what one device sends, and how many messages follow one another."""
    part, sent, rounds = size / num_devices, 0.0, 0
    held = [[{(device, piece)} for piece in range(num_devices)] for device in range(num_devices)]
    for phase in range(2):
        for step in range(num_devices - 1):
            messages = []
            for device in range(num_devices):
                piece = (device + phase - step) % num_devices
                messages.append(((device + 1) % num_devices, piece, set(held[device][piece])))
            for target, piece, terms in messages:
                held[target][piece] = held[target][piece] | terms if phase == 0 else terms
            sent, rounds = sent + part, rounds + 1
    for pieces in held:
        assert all(len(terms) == num_devices for terms in pieces)
    return Traffic(sent, rounds)


@pytest.mark.parametrize("group", [2, 3, 4, 7, 8])
def test_a_ring_all_reduce_is_what_playing_it_gives(group):
    played = all_reduced_in_a_ring(group, 840)
    told = one("all-reduce", 840, group=group).ring()
    assert told.num_rounds == played.num_rounds
    assert told.num_bytes == pytest.approx(played.num_bytes)


@pytest.mark.parametrize("group", [2, 3, 4, 8])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(group):
    size = 12 * group
    parts = one("reduce-scatter", size, group=group), one("all-gather", 12, group=group)
    whole = one("all-reduce", size, group=group).ring()
    assert whole.num_bytes == sum(part.ring().num_bytes for part in parts)
    assert whole.num_rounds == sum(part.ring().num_rounds for part in parts)


def test_the_root_of_a_tree_sends_in_every_round_on_the_way_down():
    for group in (2, 3, 4, 5, 8, 1000):
        rounds = math.ceil(math.log2(group))
        assert one("all-reduce", 100, group=group).tree() == Traffic(100 * rounds, 2 * rounds)
        gathered = one("all-gather", 100, group=group).tree()
        assert gathered == Traffic(100 * group * rounds, 2 * rounds)
        assert one("reduce-scatter", 100, group=group).tree() == Traffic(100, 2 * rounds)


@pytest.mark.parametrize(
    "kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"]
)
def test_one_device_sends_nothing(kind):
    alone = one(kind, 100, group=1)
    assert alone.ring() == alone.tree() == Traffic(0, 0)


def test_others_send_what_their_definition_says():
    assert one("all-to-all", 100).ring() == Traffic(75, 3)
    assert one("all-to-all", 100).tree() == Traffic(100, 2)
    assert one("broadcast", 100).ring() == Traffic(100, 3)
    assert one("broadcast", 100).tree() == Traffic(200, 2)
    assert one("collective-permute", 100).ring() == Traffic(100, 1)
    assert one("collective-permute", 100).tree() == Traffic(100, 1)


def test_a_merged_collective_keeps_the_forms_of_the_trace():
    asked = [one("all-reduce", 8, variables=("w",)), one("all-reduce", 4, 4, variables=("b",))]
    assert as_compiled(asked, [one("all-reduce", 4, 8, 4)]) == tuple(asked)


def test_a_collective_that_xla_leaves_out_is_not_told():
    asked = [one("all-reduce", 8), one("all-gather", 4)]
    assert as_compiled(asked, [one("all-gather", 4)]) == (asked[1],)


def test_a_collective_in_pieces_keeps_its_variables():
    asked = [one("all-reduce", 8, line="f.py:1", variables=("w",))]
    (told,) = as_compiled(asked, [one("all-reduce", 4, line="f.py:1")])
    assert told == one("all-reduce", 4, line="f.py:1", variables=("w",))


def test_what_no_line_of_the_trace_asks_for_was_put_in():
    asked = [one("all-reduce", 8, line="f.py:1", variables=("w",))]
    gather = one("all-gather", 4, line="f.py:1", over=LOGICAL_DEVICES)
    told = as_compiled(asked, [*asked, gather])
    assert told == (asked[0], dataclasses.replace(gather, is_inserted=True))


def test_a_loop_that_xla_has_unrolled_counts_once():
    asked = [one("all-reduce", 8, count=3)]
    assert as_compiled(asked, [one("all-reduce", 8)] * 3) == tuple(asked)


def test_xla_may_know_how_often_a_while_loop_runs():
    asked = [one("all-reduce", 8, count=None)]
    assert as_compiled(asked, [one("all-reduce", 8, count=5)])[0].count == 5
    assert as_compiled(asked, [one("all-reduce", 8, count=None)])[0].count is None
