"""Ops without a rule: by torch's decomposition, by a user's rule, replicated with a warning, or rejected."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import spmdir
from spmdir.core.errors import SpmdirError, SpmdirWarning, UnsupportedError
from spmdir.dialects import ir
from spmdir.importer import decompose
from spmdir.rules.rule_set import default

MESH = spmdir.Mesh({"dp": 2})


class Apply(nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def imported(function: Callable[..., Tensor], x: Tensor, **options: str):
    exported = torch.export.export(Apply(function), (x,))
    return spmdir.import_fx(exported, MESH, {"x": "dp: S(0)"}, **options)  # type: ignore[arg-type]


def ops(module) -> list[str]:
    return [op.name for op in ir.main_function(module).body.block.ops if op.name.split(".")[0] in ("aten", "ours")]


@pytest.mark.parametrize(
    ("function", "without"),
    [
        (lambda x: torch.inner(x, x), "aten.inner"),
        (lambda x: torch.fft.fft(x).abs(), "aten.fft_fft"),
        (lambda x: torch.linalg.inv(x @ x.mT + torch.eye(4, dtype=x.dtype)), "aten.linalg_inv"),
        (lambda x: torch.linalg.multi_dot([x, x.mT, x]), "aten.linalg_multi_dot"),
        (lambda x: torch.tensordot(x, x, dims=([1], [1])), "aten.tensordot"),  # type: ignore
    ],
)
def test_an_op_without_a_rule_is_imported_as_the_ops_that_torch_makes_of_it(
    function: Callable[..., Tensor], without: str
):
    x = torch.randn(4, 6, dtype=torch.float64)
    assert default().lookup(without) is None
    module = imported(function, x, missing_rule="error")
    assert without not in ops(module)
    assert all(default().lookup(name) for name in ops(module))
    (found,) = spmdir.simulate(module, [x])
    torch.testing.assert_close(found, function(x))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_that_draw_nothing_are_imported_as_their_steps(layer: type[nn.RNNBase]):
    model = layer(6, 3, batch_first=True, bidirectional=True).double()  # type: ignore
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    exported = torch.export.export(model, (x,))
    module = spmdir.import_fx(exported, MESH, {"input": "dp: S(0)", "*": "dp: S(0)"}, missing_rule="error")
    found = spmdir.simulate(module, [x], model.state_dict())
    output, state = model(x)
    torch.testing.assert_close(found, [output, *(state if isinstance(state, tuple) else [state])], rtol=1e-9, atol=1e-9)


def test_a_recurrent_layer_that_drops_stays_whole():
    model, x = nn.GRU(6, 3, num_layers=2, dropout=0.5), torch.randn(4, 2, 6)
    with pytest.raises(UnsupportedError, match=r"aten\.gru\.input"):
        spmdir.import_fx(torch.export.export(model, (x,)), MESH, missing_rule="error")


def test_a_decomposition_that_gives_another_shape_is_not_taken(monkeypatch):
    op = torch.ops.aten.inner.default
    monkeypatch.setattr(decompose, "sized_form", lambda target: lambda *args: op(*args)[None])
    model, x = Apply(lambda x: torch.inner(x, x)), torch.rand(4, 6)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    with pytest.raises(
        UnsupportedError, match=r"'inner' calls aten\.inner, which has no rule and no decomposition into ops"
    ):
        spmdir.import_fx(program, MESH, {"x": "dp: S(0)"}, missing_rule="error")


def test_the_expanded_ops_stand_where_the_op_stood():
    module = imported(lambda x: torch.inner(x, x), torch.randn(4, 6), missing_rule="error")
    places = {str(op.location) for op in ir.main_function(module).body.block.ops if op.name.startswith("aten")}
    assert len(places) == 1 and "test_decompose.py" in places.pop()


@torch.library.custom_op("ours::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    return x / 2


@halve.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_op_of_which_nothing_is_known_runs_replicated_with_a_located_warning():
    x = torch.randn(4, 6)
    module = imported(torch.ops.ours.halve, x)
    message = r"test_decompose\.py.*'ours\.halve' has no rule, so it runs replicated"
    with pytest.warns(SpmdirWarning, match=message) as warned:
        (found,) = spmdir.simulate(module, [x])
    assert warned[0].filename == __file__
    torch.testing.assert_close(found, x / 2)


def test_an_op_of_which_nothing_is_known_is_rejected_if_that_is_asked_for():
    with pytest.raises(UnsupportedError, match=r"test_decompose\.py.*calls ours\.halve, which has no rule"):
        imported(torch.ops.ours.halve, torch.randn(4, 6), missing_rule="error")
    with pytest.raises(SpmdirError, match="missing_rule is 'ignore'"):
        imported(torch.ops.ours.halve, torch.randn(4, 6), missing_rule="ignore")


def test_propagate_rejects_an_op_without_a_rule_if_that_is_asked_for():
    module = imported(torch.ops.ours.halve, torch.randn(4, 6))
    with pytest.raises(spmdir.SpmdirError, match=r"test_decompose\.py.*op ours\.halve has no sharding rule"):
        spmdir.run_passes(module, "propagate{missing-rule=error}")


def test_a_custom_op_with_a_rule_of_the_user_is_sharded_from_import_to_simulation(tmp_path: Path, recwarn):
    path = tmp_path / "own.rules"
    path.write_text("ours.halve(x: *) -> *    linear x\n")
    x = torch.randn(4, 6)
    with spmdir.rules.using_rules(path):
        module = imported(torch.ops.ours.halve, x, missing_rule="error")
        spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard,localize")
    assert "ours.halve(%x) : tensor<2x6xf32>" in spmdir.print_ir(module)
    (found,) = spmdir.simulate(module, [x])
    torch.testing.assert_close(found, x / 2)
    assert not [w for w in recwarn if issubclass(w.category, SpmdirWarning)]


def test_rules_of_a_block_end_with_it(tmp_path: Path):
    path = tmp_path / "own.rules"
    path.write_text("ours.halve(x: *) -> *    linear x\n")
    with spmdir.rules.using_rules(path) as rules:
        assert default() is rules
        inner = spmdir.rules.using_rules(path)
        with inner:
            assert default() is inner
        with pytest.raises(ZeroDivisionError), inner:
            1 / 0  # noqa: B018
        assert default() is rules
    assert default().lookup("ours.halve") is None
