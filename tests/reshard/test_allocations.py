"""What a collective allocates alone, and several tensors together."""

from __future__ import annotations

from spmdir.reshard.allocations import Allocation, allocate_alone, allocate_bucket
from spmdir.reshard.collectives import collective


def test_each_buffer_of_a_collective_is_made_of_the_one_before() -> None:
    found = allocate_alone([("packed", 8.0), ("received", 4.0)])
    assert found.buffers == (Allocation(8.0, 0, (~0,)), Allocation(4.0, 0, (0,)))
    assert (found.start_count, found.sent, found.results) == (2, (0,), (1,))


def test_a_wait_unpacks_what_has_arrived_and_the_operand_is_sent_till_then() -> None:
    found = allocate_alone([("received", 16.0), ("unpacked", 16.0)])
    assert (found.start_count, found.sent, found.results) == (1, (~0,), (1,))


def test_a_view_allocates_nothing_and_is_its_operand() -> None:
    found = allocate_alone([])
    assert (found.buffers, found.sent, found.results) == ((), (~0,), (~0,))


def test_an_operand_of_which_chunks_stay_is_needed_to_the_end() -> None:
    assert [one.reads for one in allocate_alone([("received", 1.0), ("result", 2.0)], keeps_operand=True).buffers] == [
        (~0,),
        (0, ~0),
    ]


def test_results_of_a_bucket_of_sums_are_views_of_what_arrives() -> None:
    found = allocate_bucket(
        collective("reduce_scatter"), [[("packed", 8.0), ("received", 2.0)], [("received", 4.0)]], [8.0, 16.0], [2, 4]
    )
    assert [(one.bytes, one.reads) for one in found.buffers] == [(8.0, (~0,)), (24.0, (0, ~1)), (6, (1,))]
    assert (found.start_count, found.sent, found.results) == (3, (1,), (2, 2))


def test_a_bucket_of_gathers_is_copied_apart_by_the_wait() -> None:
    found = allocate_bucket(
        collective("all_gather"), [[("received", 8.0), ("unpacked", 8.0)], [("received", 4.0)]], [2.0, 1.0], [8, 4]
    )
    assert [(one.bytes, one.reads) for one in found.buffers] == [(3.0, (~0, ~1)), (12, (0,)), (8, (1,)), (4, (1,))]
    assert (found.start_count, found.sent, found.results) == (2, (0,), (2, 3))


def test_a_bucket_of_exchanges_sends_what_leaves_the_rank_and_keeps_what_stays() -> None:
    members = [[("sent", 6.0), ("received", 5.0), ("result", 8.0)], [("sent", 3.0), ("received", 3.0), ("result", 4.0)]]
    found = allocate_bucket(collective("exchange"), members, [8.0, 4.0], [8.0, 4.0], [True, False])
    assert [(one.bytes, one.reads) for one in found.buffers] == [
        (6.0, (~0,)), (3.0, (~1,)), (9.0, (0, 1)), (8.0, (2,)), (5.0, (3,)), (3.0, (3,)), (8.0, (4, ~0)), (4.0, (5,)),
    ]  # fmt: skip
    assert (found.start_count, found.sent, found.results) == (4, (2,), (6, 7))


def test_a_bucket_of_all_to_alls_is_joined_before_members_are_unpacked() -> None:
    unpacking = [("packed", 4.0), ("received", 4.0), ("unpacked", 4.0)]
    found = allocate_bucket(collective("all_to_all"), [unpacking, [("received", 2.0)]], [4.0, 2.0], [4.0, 2.0])
    assert [one.reads for one in found.buffers] == [(~0,), (0, ~1), (1,), (2,), (2,), (3,)]
    assert found.results == (5, 4)
