"""Where imported ops say they come from."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from xdsl.dialects.builtin import CallSiteLoc

from spmdir.dialects.ir import parse, print_ir
from spmdir.dialects.locations import location_of
from spmdir.importer.importer import import_fx
from spmdir.importer.locations import call_stack, innermost_frame, user_frames
from tests.importer.imported_programs import MESH, export, op


class _Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


class _Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = _Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_an_op_knows_its_module_and_its_line():
    module = import_fx(
        export(lambda s, x: s.inner.layer(x), torch.ones(2), inner=nn.ModuleDict({"layer": _Layer()})), MESH
    )
    found = op(module, "aten.exp")
    place = location_of(found)
    assert place is not None
    assert place.file == "test_locations.py"
    assert place.line == inspect.getsourcelines(_Layer.forward)[1] + 1
    assert found.location.desc.data == "inner.layer"  # type: ignore


def test_files_of_packages_are_relative_to_what_is_installed_and_others_have_no_folders():
    trace = 'File "/src/model.py", line 3, in f\n File "/v/lib/python3.11/site-packages/lib/nn.py", line 7, in g'
    assert str(innermost_frame(trace)) == "lib/nn.py:7:1"
    assert str(innermost_frame(trace.partition("\n")[0])) == "model.py:3:1"


def test_a_location_keeps_the_call_stack_and_starts_with_its_innermost_frame():
    outer, inner = _Outer.forward, _Layer.forward
    module = import_fx(export(lambda s, x: s.outer(x), torch.ones(2), outer=_Outer()), MESH)
    stack = op(module, "aten.exp").location.location  # type: ignore
    assert stack.callee.line.data == inspect.getsourcelines(inner)[1] + 1  # type: ignore
    assert stack.caller.callee.line.data == inspect.getsourcelines(outer)[1] + 1  # type: ignore


def test_a_call_stack_of_any_depth_is_cut_to_its_innermost_frames():
    trace = "\n".join(f'File "/a/model.py", line {line}, in f' for line in range(1, 10_001))
    location, depth = call_stack(user_frames(trace)), 1
    while isinstance(location, CallSiteLoc):
        location, depth = location.caller, depth + 1
    assert (depth, location.line.data) == (32, 10_000 - 31)  # type: ignore


def test_frames_inside_torch_are_passed_over():
    trace = 'File "/a/model.py", line 3, in f\n File "/v/site-packages/torch/nn/linear.py", line 9, in forward'
    assert str(innermost_frame(trace)) == "model.py:3:1"
    assert innermost_frame(None) is None


def test_locations_survive_the_text():
    module = import_fx(export(lambda s, x: s.layer(x), torch.ones(2), layer=_Layer()), MESH)
    text = print_ir(module, debuginfo=True)
    assert '#loc1 = loc("test_locations.py":' in text and "= loc(callsite(#loc1 at #loc2))" in text
    again = print_ir(parse(text), debuginfo=True)
    assert print_ir(parse(again), debuginfo=True) == again
    assert location_of(op(parse(text), "aten.exp")) == location_of(op(module, "aten.exp"))


def test_names_of_any_language_survive_the_text():
    text = """spmd.mesh @mesh <dp = 2>
func.func @f(%x: tensor<4xf32> {spmd.name = "größe\\1B"}) -> tensor<4xf32> {
  %a = aten.relu(%x) : tensor<4xf32> loc("层.0"("josé/model.py":5:1))
  return %a : tensor<4xf32>
}
"""
    printed = print_ir(parse(text), debuginfo=True)
    again = parse(printed)
    place = location_of(next(op for op in again.walk() if op.name == "aten.relu"))
    assert place is not None and place.file == "josé/model.py"
    assert print_ir(again, debuginfo=True) == printed
