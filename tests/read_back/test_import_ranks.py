"""The program of one rank becomes the global program that all ranks compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import spmdir
from spmdir.core.errors import ShardingError
from tests.read_back.rank_graphs import (
    MESH,
    all_gather,
    all_reduce,
    assert_equals_one_device,
    import_function,
    random_inputs,
    reduce_scatter,
)

MLP = {"x": "dp: S(0)", "w1": "tp: S(1)", "w2": "tp: S(0)"}
INPUTS = random_inputs({"x": (4, 6, 8), "w1": (8, 6), "w2": (6, 8)})


def mlp(x, w1, w2):
    return torch.relu(x @ w1) @ w2


def test_column_and_row_parallel_layers_with_an_all_reduce():
    module = import_function(lambda x, w1, w2: all_reduce(mlp(x, w1, w2)), INPUTS, MLP)
    assert_equals_one_device(module, mlp, INPUTS)
    text = spmdir.print_ir(module)
    assert "%w1_1: tensor<8x6xf64>" in text
    assert "spmd.all_reduce %mm_1.einsum on [tp] op sum : tensor<4x6x8xf64> <dp: S(0)>" in text


@pytest.mark.parametrize("rank", range(4))
def test_sequence_parallel_layers_gather_and_scatter_a_middle_dimension(rank):
    def local(x, w1, w2):
        return reduce_scatter(mlp(all_gather(x, 1), w1, w2), 1)

    module = import_function(local, INPUTS, {**MLP, "x": "dp: S(0), tp: S(1)"}, rank=rank)
    assert_equals_one_device(module, mlp, INPUTS)
    text = spmdir.print_ir(module)
    assert "spmd.all_gather %x_1 on [tp] dim 1" in text
    assert "aten.cat" not in text


@pytest.mark.parametrize(
    ("local", "message"),
    [
        (
            lambda x, w1, w2: torch.relu(mlp(x, w1, w2)),
            "'aten.relu' gets a partial sum over tp as operand 0 (self); expected a complete value: add an all_reduce "
            "over tp before it",
        ),
        (
            lambda x, w1, w2: all_reduce(all_reduce(mlp(x, w1, w2))),
            "'_c10d_functional.all_reduce' gets a complete value over tp, so the result would be 2 times the value; "
            "expected a partial value of 'sum' over tp: remove the all_reduce",
        ),
        (
            lambda x, w1, w2: all_reduce(mlp(x, w1, w2), "dp"),
            "'_c10d_functional.all_reduce' gets a shard of dimension 0 over dp; expected a partial value of 'sum' over "
            "dp: gather the shards instead of adding them",
        ),
    ],
)
def test_a_wrong_collective_is_an_error_that_names_the_op(local, message):
    with pytest.raises(ShardingError) as raised:
        import_function(local, INPUTS, MLP)
    assert message in raised.value.message


def test_an_unknown_group_is_an_error_that_names_the_argument():
    with pytest.raises(ShardingError, match="'pp'"):
        import_function(lambda x, w1, w2: all_reduce(mlp(x, w1, w2), "pp"), INPUTS, MLP)


def test_the_result_is_a_program_at_the_stage_lowered_that_reports_accept():
    module = import_function(lambda x, w1, w2: all_reduce(mlp(x, w1, w2)), INPUTS, MLP)
    assert "all_reduce" in str(spmdir.report.comm_report(module))
    assert spmdir.lower_to_fx(module, rank=3).graph.find_nodes(
        op="call_function", target=torch.ops._c10d_functional.all_reduce.default
    )


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.zeros(8, 3)), nn.Parameter(torch.zeros(3, 8))

    def forward(self, x):
        y = torch.relu(x @ self.w1) @ self.w2
        return torch.relu(y)  # without an all-reduce


def test_an_error_of_an_exported_program_has_the_line_of_the_op():
    program = torch.export.export(Mlp(), (torch.zeros(4, 8),))
    with pytest.raises(ShardingError) as raised:
        spmdir.import_ranks(program, MESH, MLP)
    location = raised.value.location
    line = Path(__file__).read_text().splitlines()[location.line - 1]
    assert location.file == "test_import_ranks.py"
    assert line.strip() == "return torch.relu(y)  # without an all-reduce"
