"""Forward and backward, one after the other, compute what the program of both computes."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects import ir
from spmdir.dialects.values import signature_kind, signature_name
from spmdir.importer.importer import import_fx
from spmdir.pipeline.pipeline import SCHEDULED, Pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.runtime.joint_capture import capture_joint
from spmdir.simulator.simulate import run_single, simulate
from spmdir.transforms.split_backward import SplitProgram, split_backward

MESH = spmdir.Mesh({"dp": 2, "tp": 2})
PLAN = {"*.weight": "dp: S(0)", "arg*": "dp: S(0)"}


class Tower(nn.Module):
    """Two layers and a batch norm; the first is a checkpointed region if that is asked for."""

    def __init__(self, is_checkpointed: bool):
        super().__init__()
        self.up, self.down, self.norm, self.is_checkpointed = (
            nn.Linear(8, 16), nn.Linear(16, 8), nn.BatchNorm1d(8), is_checkpointed
        )  # fmt: skip

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).relu().sin().cos().sigmoid().exp()

    def forward(self, x: torch.Tensor) -> Any:
        hidden: Any = checkpoint(self.inner, x, use_reentrant=False) if self.is_checkpointed else self.inner(x)
        return self.norm(self.down(hidden)).square().mean()


def split(model: nn.Module, x: torch.Tensor, pipeline: Pipeline) -> tuple[ModuleOp, SplitProgram]:
    """The imported program of a model, and its two parts."""
    joint = capture_joint(model, (x,), {}, torch.device("cpu"), ShardingPlan())
    out_shardings = ["", *[None] * len(joint.call.gradients)]
    imported = import_fx(joint.program, MESH, PLAN, out_shardings=out_shardings)  # type: ignore[arg-type]
    with pipeline.rules:
        module = localize(imported, pipeline)
    return imported, split_backward(module, range(1, 1 + len(joint.call.gradients)))


def run(module: ModuleOp, given: Sequence[torch.Tensor], pipeline: Pipeline) -> list[Any]:
    """What all ranks compute of arguments of all kinds, in order."""
    function = ir.main_function(module)
    state, inputs = {}, []
    for argument, tensor in zip(function.args, given, strict=True):
        if signature_kind(function, "arg_attrs", argument.index) in ("input", "tangent"):
            inputs.append(tensor)
        else:
            state[signature_name(function, "arg_attrs", argument.index)] = tensor
    return simulate(module, inputs, state, pipeline=pipeline)


@pytest.mark.parametrize("steps", ["standard", "scheduled"])
def test_the_parts_give_outputs_new_values_and_gradients(steps: str):
    pipeline = Pipeline(SCHEDULED, topology="cpu-gloo") if steps == "scheduled" else Pipeline()
    model, x = Tower(is_checkpointed=True).double(), torch.randn(8, 8, dtype=torch.float64)
    imported, parts = split(model, x, pipeline)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: tensor.detach() for name, tensor in state.items()}
    tangent = torch.tensor(0.5, dtype=torch.float64)
    expected = run_single(imported, [x, tangent], state)
    given = [*(state[name] for name in _names(parts.forward) if name in state), x]
    returned = run(parts.forward, given, pipeline)
    values, new = len(returned) - 3, returned[-3:]  # simulate puts what is mutated last
    gradients = run(parts.backward, [*returned[1:values], tangent], pipeline)
    torch.testing.assert_close([returned[0], *gradients, *new], expected, rtol=1e-12, atol=1e-12)
    assert values - 1 == parts.saved


def test_values_of_a_checkpointed_region_are_not_kept_for_the_backward():
    x = torch.randn(8, 8)
    saved = {flag: split(Tower(flag), x, Pipeline())[1].saved for flag in (False, True)}
    assert saved[True] < saved[False]


def test_both_parts_are_programs_of_their_own():
    _, parts = split(Tower(is_checkpointed=False), torch.randn(8, 8), Pipeline(SCHEDULED, topology="cpu-gloo"))
    for module in (parts.forward, parts.backward):
        ir.verify(module)
        assert spmdir.print_ir(ir.parse(spmdir.print_ir(module))) == spmdir.print_ir(module)


def _names(module: ModuleOp) -> list[str]:
    function = ir.main_function(module)
    return [signature_name(function, "arg_attrs", argument.index) for argument in function.args]


def test_a_key_that_matches_nothing_of_a_joint_program_is_not_told_of_gradients_of_outputs() -> None:
    layer = nn.Linear(8, 8, bias=False)
    joint = capture_joint(layer, (torch.zeros(8, 8),), {}, torch.device("cpu"), ShardingPlan())
    with pytest.raises(spmdir.SpmdirError, match=r"its inputs are \w+, and its parameters and buffers are weight$"):
        import_fx(joint.program, MESH, {"none.*": "dp: S(0)"})  # type: ignore[arg-type]
