"""Forms of a mixture of experts that are recognised: that of torchtitan, with its variants, on simulated ranks."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.errors import ParseError
from spmdir.pipeline.pipeline import SCHEDULED
from spmdir.plans.resolve import resolve
from spmdir.rewrites.op_rewrite_text import parse_op_rewrites
from spmdir.runtime.capture import capture_step
from tests.lowering.gloo_ranks import on_ranks
from tests.models.test_expert_training import with_dispatched_rows
from tests.models.test_expert_updates import SLOW

COUNTS = {
    "histc": lambda ids, scores: torch.histc(ids.reshape(-1).float(), bins=4, min=0, max=4),
    "one-hot": lambda ids, scores: torch.zeros_like(scores).scatter(1, ids, 1).sum(0),
    "mask": lambda ids, scores: torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, ids, True).sum(dim=0),
}


class Mixture(nn.Module):
    """Experts as in torchtitan: sorted scores, rows by gather or index, results by scatter_add or a permutation."""

    def __init__(self, counts: str, is_scored_before: bool, rows: str, results: str):
        super().__init__()
        self.counts, self.is_scored_before, self.rows, self.results = counts, is_scored_before, rows, results
        self.gate, self.shared, self.experts = nn.Linear(6, 4, bias=False), nn.Linear(6, 6), nn.Module()
        self.experts.w1 = nn.Parameter(torch.randn(4, 10, 6))
        self.experts.w2 = nn.Parameter(torch.randn(4, 6, 10))
        self.experts.w3 = nn.Parameter(torch.randn(4, 10, 6))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, 6)
        scores = self.gate(tokens).softmax(-1)
        top, ids = torch.topk(scores, 2, dim=-1, sorted=False)
        counts = COUNTS[self.counts](ids, scores)
        order = torch.argsort(ids.reshape(-1), stable=True)
        column = top.reshape(-1)[order].reshape(-1, 1)
        index = (order // 2).reshape(-1, 1).expand(-1, 6)
        rows = torch.gather(tokens, 0, index) if self.rows == "gather" else tokens[order // 2]
        rows = rows * column if self.is_scored_before else rows
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        gate, up = (torch._grouped_mm(rows, w.mT, offs=ends) for w in (self.experts.w1, self.experts.w3))
        out = torch._grouped_mm(silu(gate) * up, self.experts.w2.mT, offs=ends)
        out = out if self.is_scored_before else out * column
        if self.results == "scatter_add":
            return self.shared(tokens).scatter_add(0, index, out).reshape(x.shape)
        pairs = torch.zeros_like(out)
        pairs[order] = out
        return (self.shared(tokens) + pairs.reshape(-1, 2, 6).sum(1)).reshape(x.shape)


FORMS = list(itertools.product(COUNTS, [True, False], ["gather", "index"], ["scatter_add", "permuted"]))
REPLACED = r"aten\.(sort|histc|index_put|index\.|gather|scatter_add|cumsum)"


def one_device(model: Mixture, x: Tensor) -> Tensor:
    """Return the outputs, computed by a loop over experts."""
    tokens = x.reshape(-1, 6)
    top, ids = model.gate(tokens).softmax(-1).topk(2, dim=-1)
    result = model.shared(tokens)
    for expert, slot in itertools.product(range(4), range(2)):
        score = torch.where(ids[:, slot] == expert, top[:, slot], torch.zeros(()).double())[:, None]
        rows = tokens * score if model.is_scored_before else tokens
        w1, w2, w3 = (w[expert] for w in (model.experts.w1, model.experts.w2, model.experts.w3))
        out = (silu(rows @ w1.T) * (rows @ w3.T)) @ w2.T
        result = result + (out if model.is_scored_before else out * score)
    return result.reshape(x.shape)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: ", ".join(map(str, form)))
@pytest.mark.parametrize("tokens", [(5, 1)], ids=str)
def test_rows_of_all_forms_are_dispatched_and_equal_one_device(form: tuple, tokens: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, x = Mixture(*form).double(), torch.randn(*tokens, 6).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step, state = spmdir.training_step(model, lambda model, x: model(x).square().sum(), optimizer)
    mesh, leaves = spmdir.Mesh({"ep": 2}), pytree.tree_leaves(state)
    program = capture_step(step, state, (x,), torch.device("cpu")).program
    module = spmdir.import_fx(program, mesh, resolve("ep", model, mesh).with_inputs(len(leaves), 1))
    assert not re.search(REPLACED, spmdir.print_ir(module))
    module = spmdir.run_passes(with_dispatched_rows(module, "ep: Grouped(0)"), "propagate{topology=flat}")
    loss, *new_state = spmdir.simulate(module, [*leaves, x])
    loss_of_one = one_device(model, x).square().sum()
    gradients = torch.autograd.grad(loss_of_one, list(model.parameters()))
    assert abs(loss - loss_of_one) < 1e-12 * loss_of_one
    for (name, parameter), new, gradient in zip(model.named_parameters(), new_state, gradients, strict=False):
        error = (parameter - new - gradient).abs().max() / gradient.abs().max()
        assert error < 1e-12, name


@pytest.mark.parametrize("is_scored_before", [True, False])
def test_a_layer_exchanges_rows_four_times_and_no_scores(is_scored_before: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Mixture("histc", is_scored_before, "gather", "scatter_add"))
    step, state = spmdir.training_step(model, mean_square, torch.optim.SGD(model.parameters()))
    program = capture_step(step, state, (torch.ones(4, 3, 6),), torch.device("cpu")).program
    text = spmdir.print_ir(spmdir.import_fx(program, spmdir.Mesh({"ep": 2})))
    assert re.findall(r"= experts\.regroup\(.*: (\S+)", text) == ["tensor<24x6xf32>"] * 4


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def compiled_losses(rank: int) -> tuple[bool, list[float]]:
    """Return whether rows move, and the losses of three updates of a program that Inductor compiles."""
    torch.manual_seed(0)
    model, x = Mixture("histc", False, "gather", "scatter_add").double(), torch.randn(5, 1, 6).double()
    step, state = spmdir.training_step(model, mean_square, torch.optim.SGD(model.parameters(), lr=0.1))
    pipeline = spmdir.Pipeline(SCHEDULED, topology=SLOW)
    options = {"state": state, "pipeline": pipeline, "compile": True}
    parallel = spmdir.parallelize(step, spmdir.Mesh({"ep": 2}), "ep", (x,), **options)
    return "spmd.exchange_rows_start" in str(parallel.rank_module), [parallel(x).item() for _ in range(3)]


@pytest.mark.gloo
def test_a_program_with_dispatched_rows_can_be_compiled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Mixture("histc", False, "gather", "scatter_add").double(), torch.randn(5, 1, 6).double()
    optimizer, expected = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = one_device(model, x).square().mean()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    for moves_rows, losses in on_ranks(2, compiled_losses, tmp_path):
        assert moves_rows
        assert losses == pytest.approx(expected, rel=1e-12)


WRONG = {
    "y = aten.relu(x)\n  becomes\n    y = aten.neg(z)": "uses the name 'z'; expected one of its pattern: x, y",
    "y = aten.relu(x)\n  becomes\n    y = aten.neg(x)\n  when rank(w) == 2": "uses the name 'w'",
    "y = aten.relu(x)\n  becomes\n    y = aten.neg(x)\n  when rnk(x) == 2": r"calls rnk\(x\); expected one of rank",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_rewrite_with_an_unknown_name_is_a_located_error(text: str) -> None:
    with pytest.raises(ParseError, match=WRONG[text]) as caught:
        parse_op_rewrites(f"wrong:\n    {text}\n", "wrong.op_rewrites")
    assert caught.value.location is not None and caught.value.location.line > 1
