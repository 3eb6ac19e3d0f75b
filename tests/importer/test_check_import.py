"""`import_fx(check=True)` compares what it imports with the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from spmdir.core.errors import CheckError, SpmdirError, UnsupportedError
from spmdir.importer import aliases, graph_builder, read_exported, read_traced
from spmdir.importer.importer import import_compared, import_fx
from tests.importer.imported_programs import MESH, Function, export

X = torch.randn(5, dtype=torch.float64)


def write_a_window(x: Tensor) -> tuple[Tensor, Tensor]:
    x.unfold(-1, 2, 2).sub_(0.25)
    return torch.full((5,), 2.0), x * 1


@pytest.mark.parametrize("trace", ["make_fx", "export"])
def test_a_wrong_import_is_an_error_at_the_first_output_that_differs(trace: str, monkeypatch: pytest.MonkeyPatch):
    for module in (read_exported, read_traced):
        monkeypatch.setattr(module, "with_explicit_aliases", lambda graph, held: graph)
    x = X.clone()
    graph = make_fx(write_a_window)(x) if trace == "make_fx" else export(lambda _, x: write_a_window(x), x)
    import_fx(graph, MESH)
    with pytest.raises(CheckError, match="output 1 differs between the graph and the imported program, by up to "):
        import_fx(graph, MESH, check=True)


def test_what_a_wrong_import_writes_to_an_input_is_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_traced, "with_explicit_aliases", lambda graph, held: graph)
    graph = make_fx(lambda x: x.unfold(-1, 2, 2).sub_(0.25).sum())(X.clone())
    with pytest.raises(CheckError, match="the new value of 'x_1' differs"):
        import_fx(graph, MESH, check=True)


def test_integers_are_those_of_the_examples_and_all_that_is_written_is_compared():
    def forward(module: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        module.count.add_(1)  # type: ignore
        return module.norm(module.table(at) + x)  # type: ignore

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
    with pytest.raises(SpmdirError, match="cannot check the graph, because 'weight' has no values"):
        import_fx(program, MESH, check=True)


def program_with_dead(call: Callable[[fx.Graph, fx.Node], fx.Node], inside: bool) -> fx.GraphModule:
    """Return `x`, and a dead call, or a dead region with one."""
    module, graph = nn.Module(), fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    if inside:
        region = fx.Graph()
        region.output((call(region, region.placeholder("x")),))
        module.body = fx.GraphModule(nn.Module(), region)
        graph.call_function(torch.ops.higher_order.wrap_with_set_grad_enabled, (False, graph.get_attr("body"), x))
    else:
        call(graph, x)
    graph.output(x)
    return fx.GraphModule(module, graph)


@pytest.mark.parametrize("inside", [False, True])
def test_calls_whose_results_nothing_uses_do_not_run(inside: bool):
    ran = []
    with torch.library._scoped_library("spmdir_test_dead", "DEF") as library:
        library.define("shout(Tensor x) -> Tensor")
        library.impl("shout", lambda x: ran.append(x) or x.clone(), "CompositeExplicitAutograd")
        shout = torch.ops.spmdir_test_dead.shout.default
        graph = program_with_dead(lambda graph, x: graph.call_function(shout, (x,)), inside)
        import_fx(graph, MESH, check=True)
    assert not ran


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("check", [False, True])
def test_a_dead_call_that_prints_is_rejected_before_anything_runs(
    check: bool, inside: bool, capfd: pytest.CaptureFixture[str]
):
    def call(graph: fx.Graph, x: fx.Node) -> fx.Node:
        return graph.call_function(torch.ops.aten._print.default, ("HOSTILE OP RAN",))

    with pytest.raises(UnsupportedError, match=r"calls aten\._print, which returns no tensor"):
        import_fx(program_with_dead(call, inside), MESH, check=check)
    assert "HOSTILE" not in "".join(capfd.readouterr())


def test_a_call_that_writes_what_a_file_holds_is_rejected_before_anything_runs(tmp_path: Path):
    out = torch.ops.aten.from_file.out
    graph = program_with_dead(
        lambda graph, x: graph.call_function(out, (str(tmp_path / "made"), True, 5), {"out": x}), False
    )
    with pytest.raises(UnsupportedError, match=r"opens the file in its argument 'filename'"):
        import_fx(graph, MESH, check=True)
    assert not list(tmp_path.iterdir())


def test_assertions_that_fail_on_random_inputs_are_left_out_of_the_check():
    def forward(_: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        size = at.item()
        torch._check(size > 100)
        torch._assert_async((x > 100).all())  # type: ignore
        return x * 2

    with torch.no_grad():
        graph = torch.export.export(Function(forward), (torch.full((5,), 200.0), torch.tensor(200)))
    import_fx(graph, MESH, check=True)


def test_bugs_of_the_importer_are_no_rejections(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(graph_builder, "tensor_meta", broken)
    with pytest.raises(AssertionError, match="a bug"):
        import_fx(make_fx(lambda x: x.relu())(X), MESH)
    monkeypatch.setattr(aliases, "INVERTIBLE_VIEWS", None)
    with pytest.raises(TypeError, match="NoneType"):
        import_fx(make_fx(lambda x: x.relu_())(X.clone()), MESH)


def test_an_op_that_a_second_trace_composes_of_others_may_round_in_another_way() -> None:
    def program(x: Tensor) -> Tensor:
        normal = F.layer_norm(x, x.shape, eps=0.1)
        F.mse_loss(normal, normal).uniform_()  # what is written in place is traced again
        return F.binary_cross_entropy_with_logits(F.normalize(normal, dim=0), normal)

    x = torch.randn(4, dtype=torch.float64)
    (comparison,) = import_compared(make_fx(program)(x), MESH, example_inputs=(x,), fold_views=False, check=True)[1]
    assert 0 < comparison.error <= comparison.tolerance
