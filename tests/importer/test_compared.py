"""`import_fx(check=True)` compares what it imports with the graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from spmdir.errors import SpmdirError
from spmdir.importer import import_fx, program, traced
from tests.importer.helpers import MESH, Function, export

X = torch.randn(5, dtype=torch.float64)


def write_a_window(x: Tensor) -> tuple[Tensor, Tensor]:
    x.unfold(-1, 2, 2).sub_(0.25)
    return torch.full((5,), 2.0), x * 1


@pytest.mark.parametrize("trace", ["make_fx", "export"])
def test_a_wrong_import_is_an_error_at_the_first_output_that_differs(trace: str, monkeypatch: pytest.MonkeyPatch):
    for module in (program, traced):
        monkeypatch.setattr(module, "told", lambda graph, held: graph)
    x = X.clone()
    graph = make_fx(write_a_window)(x) if trace == "make_fx" else export(lambda _, x: write_a_window(x), x)
    import_fx(graph, MESH)
    with pytest.raises(SpmdirError, match="output 1 differs between the graph and the imported program, by up to "):
        import_fx(graph, MESH, check=True)


def test_what_a_wrong_import_writes_to_an_input_is_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traced, "told", lambda graph, held: graph)
    graph = make_fx(lambda x: x.unfold(-1, 2, 2).sub_(0.25).sum())(X.clone())
    with pytest.raises(SpmdirError, match="the new value of 'x_1' differs"):
        import_fx(graph, MESH, check=True)


def test_integers_are_those_of_the_examples_and_all_that_is_written_is_compared():
    def forward(module: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        module.count.add_(1)
        return module.norm(module.table(at) + x)

    members = {"table": nn.Embedding(9, 6), "norm": nn.BatchNorm1d(6), "count": nn.Buffer(torch.tensor(0))}
    graph = torch.export.export(Function(forward, **members), (torch.randn(3, 6), torch.tensor([8, 0, 3])))
    import_fx(graph, MESH, check=True)


def test_open_sizes_are_checked_at_their_examples():
    model = Function(lambda _, x: x.reshape(-1) * x.shape[0])
    program = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=[({0: torch.export.Dim("rows")},)])
    import_fx(program, MESH, check=True)


def test_a_program_without_values_cannot_be_checked():
    with torch.device("meta"):
        program = torch.export.export(nn.Linear(3, 2), (torch.randn(4, 3),))
    import_fx(program, MESH)
    with pytest.raises(SpmdirError, match="cannot be checked: 'weight' has no values"):
        import_fx(program, MESH, check=True)
