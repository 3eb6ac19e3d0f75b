"""Ops of a training step, and of a module's forward and backward, name their module and line, in both directions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import spmdir
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects import ir
from spmdir.dialects.locations import places_of
from spmdir.runtime.joint_capture import capture_joint

HERE = Path(__file__).name


class Block(nn.Module):
    def __init__(self, is_checkpointed: bool = False):
        super().__init__()
        self.up, self.down, self.is_checkpointed = nn.Linear(8, 16), nn.Linear(16, 8), is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.act, x, use_reentrant=False) if self.is_checkpointed else self.act(x)
        return self.down(hidden)

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.up(x))  # the line of tanh


LINE = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "the line of tanh" in text)


def _paths(module, kind: str) -> Counter[str]:
    """Return how many ops of a kind each module has."""
    ops = [op for op in ir.main_function(module).body.block.ops if op.name.startswith(f"aten.{kind}")]
    return Counter((places_of(op.location).paths or ("",))[0] for op in ops)


def _step(model: nn.Module):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, state = spmdir.training_step(model, lambda model, x, y: (model(x) - y).square().mean(), optimizer)
    traced = make_fx(step, tracing_mode="fake")(state, torch.zeros(4, 8), torch.zeros(4, 8))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return spmdir.import_fx(traced, spmdir.Mesh({"dp": 2}))


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_the_backward_of_a_step_is_of_the_modules_of_its_forward(is_checkpointed: bool) -> None:
    module = _step(nn.Sequential(Block(), Block(is_checkpointed)))
    again = int(is_checkpointed)
    assert _paths(module, "tanh") == {"0": 2, "1": 2 + again}  # one each way
    products = Counter({"0.up": 2, "0.down": 3, "1.up": 3, "1.down": 3})  # the first input needs no gradient
    found = _paths(module, "mm") + _paths(module, "addmm")
    assert found == products + Counter({"1.up": again})


def test_ops_of_both_directions_have_the_line_of_the_forward() -> None:
    module = _step(nn.Sequential(Block()))
    ops = [op for op in ir.main_function(module).body.block.ops if op.name.startswith("aten.tanh")]
    assert len(ops) == 2 and all((HERE, LINE) in places_of(op.location).frames for op in ops)


def test_the_backward_of_a_sharded_module_is_of_the_modules_of_its_forward() -> None:
    model = nn.Sequential(Block(), Block())
    program = capture_joint(model, (torch.zeros(4, 8),), {}, torch.device("cpu"), ShardingPlan({})).program
    stacks = [node.meta.get("nn_module_stack") for node in program.graph.nodes if node.op == "call_function"]
    paths = Counter(next(reversed(stack)) for stack in stacks if stack)
    assert set(paths) == {f"{at}.{name}".rstrip(".") for at in range(2) for name in ("", "up", "down")}
    assert all(stacks)
