"""Copies to the host and back in a rank's program, as it is and compiled by Inductor."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import spmdir
from spmdir.lowering import offload

X = "tensor<8x8xf32>"
WHOLE = "{spmd.sharding = #spmd.sharding<@mesh>}"
TEXT = f"""
spmd.mesh @mesh <dp = 2>
func.func @main(%x: {X} {WHOLE}) -> ({X} {WHOLE}) attributes {{spmd.stage = "local"}} {{
  %e = aten.mm(%x, %x) : {X} <>
  %0 = spmd.offload_start %e : !spmd.pending<!spmd.host<{X}>> <>
  %y = aten.mm(%x, %x) : {X} <>
  %h = spmd.wait %0 : !spmd.host<{X}> <>
  %1 = spmd.reload_start %h : !spmd.pending<{X}> <>
  %z = aten.mm(%y, %x) : {X} <>
  %b = spmd.wait %1 : {X} <>
  %r = aten.mm(%z, %b) : {X} <>
  return %r : {X}
}}
"""


@pytest.fixture(scope="module")
def program() -> fx.GraphModule:
    return spmdir.lower_to_fx(spmdir.parse(TEXT))


def test_copies_begin_and_end_where_the_text_says(program: fx.GraphModule) -> None:
    names = [node.target.__name__ for node in program.graph.nodes if node.op == "call_function"]
    copies = [name.partition(".")[0] for name in names if name != "getattr"]
    assert copies == ["mm", "offload", "mm", "end_copy", "reload", "mm", "end_copy", "mm"]


def test_what_is_copied_is_held_until_the_copy_ends(program: fx.GraphModule) -> None:
    nodes = {node.name: node for node in program.graph.nodes}
    ends = [node for node in nodes.values() if node.target is offload.end_copy]
    assert [[str(arg) for arg in node.args] for node in ends] == [["h", "e"], ["b", "h"]]


def test_a_copy_is_another_tensor_and_in_the_memory_of_the_host() -> None:
    x = torch.randn(8, 8)
    held = offload.offload(x)
    back = offload.reload(held, x.device)
    assert held.device.type == "cpu"
    x.zero_()
    held.sub_(1.0)
    assert not torch.equal(held, x) and torch.equal(back - 1.0, held)


def test_inductor_compiles_copies(program: fx.GraphModule) -> None:
    x = torch.randn(8, 8)
    with torch.no_grad():
        (found,) = spmdir.compile_program(program)(x)
    torch.testing.assert_close(found, x @ x @ x @ (x @ x))


def test_the_text_of_a_program_imports_what_copies() -> None:
    from spmdir.dialects import ir
    from spmdir.tools.spmd_translate import python_source

    module = spmdir.parse(TEXT)
    source = python_source(spmdir.lower_to_fx(module), ir.mesh(module), 0)
    assert "import spmdir.lowering.offload\n" in source
