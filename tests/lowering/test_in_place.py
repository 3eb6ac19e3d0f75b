"""A sum over ranks is made in the memory of its operand, where that is new and read by nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from spmdir.core.errors import SpmdirError
from spmdir.lowering.in_place import (
    ADD,
    COPY,
    REDUCE,
    REQUIRE_CAPACITY,
    add_in_place,
    reduce_in_place,
    write_updates,
)
from spmdir.lowering.site import WAIT, functional
from spmdir.runtime.program_parts import extract_results

aten = torch.ops.aten


def program(kind: str) -> fx.GraphModule:
    """Return a program that sums its argument, what is made of it as `kind` says, or what else reads too."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = {
        "argument": lambda: x,
        "view": lambda: graph.call_function(aten.reshape.default, (x, [-1])),
        "bucket": lambda: graph.call_function(aten.cat.default, ([x, x],)),
        "product": lambda: graph.call_function(aten.einsum.default, ("ab,bc->ac", [x, x])),
        "permuted": lambda: graph.call_function(aten.einsum.default, ("ab->ba", [x])),
        "read": lambda: graph.call_function(aten.mm.default, (x, x)),
    }[kind]()
    sent = graph.call_function(aten.contiguous.default, (made,))
    summed = graph.call_function(functional.all_reduce.default, (sent, "sum", "mesh:dp"))
    waited = graph.call_function(WAIT, (summed,))
    graph.output((waited, made) if kind == "read" else (waited, x))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("kind", "in_place"),
    [("argument", 0), ("view", 0), ("bucket", 1), ("product", 1), ("permuted", 0), ("read", 0)],
)
def test_only_new_memory_that_nothing_else_reads_is_written_to(kind: str, in_place: int) -> None:
    found = program(kind)
    reduce_in_place(found)
    assert len(found.graph.find_nodes(op="call_function", target=REDUCE)) == in_place


def test_a_part_of_a_program_leaves_out_sums_that_it_does_not_need() -> None:
    found = program("bucket")
    reduce_in_place(found)
    assert not extract_results(found, {1}).graph.find_nodes(op="call_function", target=REDUCE)
    assert extract_results(found, {0}).graph.find_nodes(op="call_function", target=REDUCE)


def updates(kind: str) -> fx.GraphModule:
    """Return a program whose second result is the new value of its argument."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    kept = graph.call_function(aten.dropout.default, (x, 0.5, False)) if kind.startswith("undeclared") else x
    view = graph.call_function(aten.t.default, (kept,))
    before = graph.call_function(aten.add.Tensor, (view if kind == "view read before" else x, y))
    new = {
        "view of another argument": lambda: graph.call_function(aten.t.default, (y,)),
        "the argument": lambda: x,
    }.get(kind, lambda: graph.call_function(aten.mul.Tensor, (x, y)))()
    after = graph.call_function(aten.add.Tensor, (view, y) if kind.endswith("view read after") else (before, new))
    graph.output((after, new, *((x,) if kind == "returned" else (new,) if kind == "returned twice" else ())))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("kind", "in_place"),
    [
        ("read before", True),
        ("view read before", True),
        ("view read after", False),
        ("undeclared view read after", False),
        ("returned", False),
        ("returned twice", False),
        ("view of another argument", False),
        ("the argument", False),
    ],
)
def test_a_new_value_overwrites_its_argument_if_nothing_reads_the_old_one_afterwards(kind: str, in_place: bool) -> None:
    expected = updates(kind)(*(arguments := (torch.rand(3, 3), torch.rand(3, 3))))
    program = updates(kind)
    write_updates(program, {1: 0})
    program.recompile()
    assert len(program.graph.find_nodes(op="call_function", target=COPY)) == in_place
    results = program(*arguments)
    assert all(map(torch.equal, results, expected))
    assert (results[1] is arguments[0]) == (in_place or kind == "the argument")
    part = extract_results(program, {0}) if in_place else program
    assert bool(part.graph.find_nodes(op="call_function", target=COPY)) == in_place  # result 0 reads the new value


@pytest.mark.parametrize("exceeding", [0, 1])
def test_no_argument_is_written_before_the_capacity_is_checked(exceeding: int) -> None:
    graph = fx.Graph()
    x, exceeds = graph.placeholder("x"), graph.placeholder("exceeds")
    new = graph.call_function(aten.mul.Tensor, (x, 2))
    read = graph.call_function(aten.add.Tensor, (x, new))  # between the new value and the check
    graph.call_function(REQUIRE_CAPACITY, (exceeds, [3]))
    graph.output((new, graph.call_function(aten.add.Tensor, (new, read))))
    program, value = fx.GraphModule(torch.nn.Module(), graph), torch.ones(2)
    write_updates(program, {0: 0})
    program.recompile()
    if exceeding:
        with pytest.raises(SpmdirError, match="1 rows exceed the capacity of 3"):
            program(value, torch.tensor([1]))
        assert torch.equal(value, torch.ones(2))
    else:
        updated, total = program(value, torch.tensor([0]))
        assert updated is value
        assert torch.equal(total, torch.full([2], 5.0))


@pytest.mark.parametrize(
    ("kind", "in_place"),
    [
        ("read before", True),
        ("read after", False),
        ("view of the sum", False),
        ("second operand", False),
        ("returned", False),
    ],
)
def test_a_sum_is_added_to_in_place_if_nothing_reads_the_old_sum_meanwhile(kind: str, in_place: bool) -> None:
    def program() -> fx.GraphModule:
        graph = fx.Graph()
        total, term = graph.placeholder("total"), graph.placeholder("term")
        before = graph.call_function(aten.mul.Tensor, (total, term))
        operands = {
            "view of the sum": (total, graph.call_function(aten.t.default, (total,))),
            "second operand": (before, total),
        }.get(kind, (total, before))
        new = graph.call_function(aten.add.Tensor, operands)
        after = graph.call_function(aten.mul.Tensor, (total if kind == "read after" else new, term))
        graph.output((after, new, *((total,) if kind == "returned" else ())))
        return fx.GraphModule(torch.nn.Module(), graph)

    expected = program()(*(arguments := (torch.rand(3, 3), torch.rand(3, 3))))
    changed = program()
    add_in_place(changed, {1: 0})
    changed.recompile()
    assert len(changed.graph.find_nodes(op="call_function", target=ADD)) == in_place
    results = changed(*arguments)
    assert all(map(torch.equal, results, expected))
    assert (results[1] is arguments[0]) == in_place
