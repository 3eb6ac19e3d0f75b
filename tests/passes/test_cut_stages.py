"""Stages: what crosses their boundaries, where they begin, and steps that cannot be cut."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.dialects.pipeline_flow import StepFlow, part_of
from spmdir.dialects.pipeline_op import pipeline_op
from spmdir.pipeline.pipeline import run_passes
from spmdir.pipelined.actions import StageMessage
from tests.simulator import pipelined_steps as cases


def messages(module: object) -> dict[str, list[str]]:
    """Return message of micro-batch 0 or of an update → the names of the values that it carries."""
    op = pipeline_op(module)
    assert op is not None
    flow = StepFlow.of(op)
    sent = [
        entry for entry in op.step.entries if isinstance(entry, StageMessage) and part_of(entry.action) == entry.action
    ]
    return {str(message): flow.carried(message) for message in sent}


def test_the_backward_is_cut_where_the_fewest_bytes_cross() -> None:
    _, _, module = cases.step_of(cases.blocks)
    sent = messages(cases.pipelined(module, "at=2"))
    assert {message: len(values) for message, values in sent.items()} == {"0F0>1": 1, "1B0>0": 1}


def test_a_skip_connection_is_sent_directly() -> None:
    _, _, module = cases.step_of(cases.SkipConnections)
    sent = messages(cases.pipelined(module, "at=layers.2,layers.4"))
    assert set(sent) == {"0F0>1", "0F0>2", "1F0>2", "2B0>1", "2B0>0", "1B0>0"}


def test_a_tied_parameter_sums_its_gradient_in_both_stages_and_adds_the_sums_once() -> None:
    batch = cases.tokens()
    _, _, module = cases.step_of(cases.gpt2, cases.cross_entropy, batch)
    sent = messages(cases.pipelined(module, "at=transformer.h.2"))
    assert {message: len(values) for message, values in sent.items()} == {
        "0F0>1": 1,
        "1B0>0": 1,
        "0U0>1": 1,
        "1U0>0": 1,
    }
    op = pipeline_op(module)
    assert op is not None
    flow = StepFlow.of(op)
    sums = [[name for name in flow.state_names(stage) if re.match(r"gradients\..*wte", name)] for stage in (0, 1)]
    assert sorted(len(names) for names in sums) == [1, 1]


def test_a_split_backward_sends_the_same_messages_after_its_input_gradients() -> None:
    _, _, module = cases.step_of(cases.blocks)
    module = cases.pipelined(module, "at=1,2,3", "zb")
    sent = messages(module)
    assert {message: len(values) for message, values in sent.items()} == {
        **{f"{stage}F0>{stage + 1}": 1 for stage in range(3)},
        **{f"{stage}I0>{stage - 1}": 1 for stage in range(1, 4)},
    }
    counts = {function.sym_name.data: len([*function.body.block.ops]) for function in ir.functions(module)}
    assert counts["stage0.input_gradient"] == 1  # nothing but its return
    assert counts["stage2.weight_gradient"] > 1 < counts["stage2.input_gradient"]


def test_clipping_sends_one_scalar_for_each_gradient() -> None:
    _, _, module = cases.step_of(cases.blocks, clip=1.0)
    sent = messages(cases.pipelined(module, "at=1"))
    assert {message: len(values) for message, values in sent.items() if "U" in message} == {"0U0>1": 4, "1U0>0": 12}


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.dropout(self.up(x)))


def test_random_ops_are_errors_at_their_line() -> None:
    _, _, module = cases.step_of(Dropout)
    with pytest.raises(SpmdirError, match=r"test_cut_stages.py:\d+:\d+: error: 'aten.bernoulli.*set dropout to 0"):
        cases.pipelined(module, "ranks=2")


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("cut-stages{ranks=2}", "the step has values without a sharding; expected a sharding for each value"),
        ("propagate,cut-stages", "expected a positive number of stages or ranks, as in cut-stages{ranks=2}"),
        ("propagate,cut-stages{ranks=3 stages=4}", "4 stages for 3 ranks along 'pp'; expected a multiple of 3"),
        ("propagate,cut-stages{at=9}", "no op of the forward belongs to the module '9'"),
        ("propagate,cut-stages{at=2,1}", "the module '1' begins before the end of the previous stage"),
        ("propagate,cut-stages{ranks=2 axis=tp}", "the mesh has the axis 'tp'; expected a mesh without the pipeline"),
        ("propagate,cut-stages{ranks=2},cut-stages{ranks=2}", "the step is cut into stages already"),
        ("propagate,cut-stages{ranks=500}", "expected at least as many as the 500 stages"),
        ("propagate,cut-stages{ranks=2},split-backward,split-backward", "the backward of the step is split already"),
        ("split-backward", "the module has no pipelined step; expected a `spmd.pipeline` op: run cut-stages first"),
        ("make-schedule", "the module has no pipelined step; expected a `spmd.pipeline` op: run cut-stages first"),
        ("propagate,cut-stages{ranks=2},make-schedule{kind=zbv}", "run split-backward first"),
    ],
)
def test_what_cannot_be_cut_is_an_error(passes: str, message: str) -> None:
    _, _, module = cases.step_of(cases.blocks)
    with pytest.raises(SpmdirError, match=re.escape(message)):
        run_passes(module, passes)


def test_a_step_without_sums_is_an_error() -> None:
    text = (
        "spmd.mesh @mesh <tp = 2>\nfunc.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}"
    )
    with pytest.raises(SpmdirError, match="expected the step of one micro-batch of training_step"):
        run_passes(ir.parse(text, "f.mlir"), "propagate,cut-stages{ranks=2}")
