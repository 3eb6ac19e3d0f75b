"""One program, imported and decided once, runs at many sizes and gives what eager gives."""

import functools
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.errors import ShardingError, SpmdirError, UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.size_ops import open_sizes
from spmdir.passes.propagate import PropagatePass
from tests.models.zoo import optimizer_of

MESH = spmdir.Mesh({"dp": 2, "tp": 2})
FOUR = spmdir.Mesh({"dp": 4})
PAIRS = [(4, 6), (8, 12), (3, 7), (5, 2), (2, 9), (6, 5)]
"""Batch and sequence: even, and such that 2 and 4 divide none of the one, of the other, or of their product."""
OPEN = {0: Dim("batch", max=32), 1: Dim("length", max=64)}


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def exported(model: nn.Module, *examples: Any, shapes: Any = None) -> torch.export.ExportedProgram:
    open_ = tuple(OPEN if isinstance(x, Tensor) and x.dim() > 1 else None for x in examples)
    named = isinstance(model, Function)
    return torch.export.export(
        model, examples, dynamic_shapes=(open_,) if named and shapes is None else shapes or open_
    )


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def assert_same(found: Any, expected: Any) -> None:
    leaves = pytree.tree_leaves(expected)
    for leaf, wanted in zip(found, leaves, strict=True):
        if isinstance(wanted, Tensor):
            torch.testing.assert_close(leaf, wanted, rtol=1e-9, atol=1e-9)
        else:
            assert leaf == wanted


class MLP(nn.Module):
    """Flattens batch and sequence and parts them again; positions and a mean by hand depend on sizes."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        hidden = self.up(x.reshape(batch * length, 8)).relu()
        positions = torch.arange(length, dtype=x.dtype)[None, :, None]
        return self.down(hidden).view(batch, length, 8) + positions * (1 / batch) + x.sum() / x.numel()


def mlp() -> MLP:
    torch.manual_seed(0)
    return MLP().double()


@pytest.mark.parametrize("decomposed", [False, True], ids=["exported", "decomposed"])
@pytest.mark.parametrize("held", ["dp: S(0)", "dp: S(1)", "dp: S(0), tp: S(1)", "dp: S(0), tp: S(0)"])
def test_a_model_runs_at_all_sizes(held: str, decomposed: bool):
    model = mlp()
    program = exported(model, values(4, 6, 8))
    program = program.run_decompositions() if decomposed else program
    module = spmdir.import_fx(program, MESH, {"x": held, "up.weight": "tp: S(0)"}, out_shardings=[held])
    spmdir.run_passes(module, "propagate")
    for batch, length in PAIRS:
        x = values(batch, length, 8)
        assert_same(spmdir.simulate(module, [x], model.state_dict()), model(x))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_layers_that_are_imported_as_their_steps_run_at_all_batches(layer: Callable[..., nn.RNNBase]):
    model = layer(8, 4, batch_first=True).double()
    program = torch.export.export(model, (values(4, 5, 8),), dynamic_shapes=({0: Dim.AUTO},))
    module = spmdir.import_fx(program, MESH, {"input": "dp: S(0)"}, missing_rule="error")
    for batch in (4, 3, 7):
        assert_same(spmdir.simulate(module, [x := values(batch, 5, 8)], model.state_dict()), model(x))


@functools.cache
def exported_mlp() -> tuple[MLP, torch.export.ExportedProgram]:
    model = mlp()
    return model, exported(model, values(4, 6, 8))


X = ["", "dp: S(0)", "tp: S(1)", "dp: S(0), tp: S(0)", "tp: S(1), dp: S(1)", "dp: S(2), tp: S(1)", "dp: P(sum)"]
UP = ["", "tp: S(0)", "dp: S(1)", "tp: S(0), dp: S(0)", "dp: S(1), tp: S(0)"]


@given(
    x=st.sampled_from(X),
    up=st.sampled_from(UP),
    y=st.sampled_from(UP),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(2, 9)), min_size=1, max_size=3),
)
@settings(max_examples=12)
def test_any_shardings_are_right_at_any_size(x: str, up: str, y: str, sizes: list[tuple[int, int]]):
    model, program = exported_mlp()
    shardings = {"x": x, "up.weight": up, "down.weight": up.replace("0", "1")}
    module = spmdir.import_fx(program, MESH, shardings, out_shardings=[y.replace("1", "2")])
    spmdir.run_passes(module, "propagate")
    for batch, length in sizes:
        given_x = values(batch, length, 8)
        assert_same(spmdir.simulate(module, [given_x], model.state_dict()), model(given_x))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double().eval()
    wrapper = Function(lambda ids: model(input_ids=ids, use_cache=False).logits)
    wrapper.model = model
    return wrapper


def test_llama_runs_at_all_sizes_with_its_decisions_made_once():
    model = llama()
    program = torch.export.export(
        model, (torch.randint(64, (4, 6)),), dynamic_shapes=(({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},),)
    )
    plan = {f"*{name}_proj.weight": "tp: S(0)" for name in ("q", "k", "v", "gate", "up")}
    module = spmdir.import_fx(program, MESH, {**plan, "*o_proj.weight": "tp: S(1)", "input:0": "dp: S(0)"})
    spmdir.run_passes(module, "propagate")
    state = {**program.state_dict, **program.constants}
    with mock.patch.object(PropagatePass, "apply", side_effect=AssertionError("decided again")):
        for batch, length in [(4, 6), (3, 7), (2, 33)]:
            ids = torch.randint(64, (batch, length))
            assert_same(spmdir.simulate(module, [ids], state), model(ids))


def _unflatten(x: Tensor) -> Tensor:
    return x.flatten(0, 1).relu().unflatten(0, (x.size(0), x.size(1))).transpose(0, 1)


def _mask(x: Tensor) -> Tensor:
    seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
    return torch.where(seen, x @ x.transpose(1, 2), -1.0).softmax(-1)


def _shifted(x: Tensor) -> Tensor:
    return torch.cat([x[:, 1:], torch.full((x.size(0), 1, x.size(2)), 2.0, dtype=x.dtype)], 1) - x


def _convolved(x: Tensor) -> Tensor:
    weight = torch.arange(48, dtype=x.dtype).view(2, 8, 3)
    return nn.functional.conv1d(x.transpose(1, 2), weight, stride=2, padding=1)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "flatten and unflatten": _unflatten,
    "a view that the tracer has to work out": lambda x: x.view(x.size(0), -1).exp(),
    "expand": lambda x: x[:, :, None].expand(-1, x.size(1), x.size(1), -1) * 2,
    "repeat": lambda x: x.mean(1, keepdim=True).repeat(1, x.size(1), 1) - x,
    "factories": lambda x: x + torch.full((x.size(0), x.size(1), 1), 0.5) + x.new_zeros(x.size(1), 8) + torch.ones(8),
    "arange": lambda x: x * torch.arange(1, x.size(1) + 1)[:, None] + torch.arange(x.size(0))[:, None, None],
    "a slice up to a size": lambda x: x[:, : x.size(1) // 2] * 3,
    "a slice from a size": lambda x: x[x.size(0) // 2 :, -2:] * 3,
    "a mask": _mask,
    "cat and slice": _shifted,
    "cat doubles a size": lambda x: torch.cat([x, x * 2], 1).sum(2),
    "pad": lambda x: nn.functional.pad(x, (0, 0, 2, 1)).cumsum(1),
    "convolution": _convolved,
    "pooling": lambda x: nn.functional.avg_pool1d(x.transpose(1, 2), 2),
    "the last position": lambda x: x[:, -1].softmax(-1),
    "a mean over sizes": lambda x: (x - x.mean((0, 1))) / x.var((0, 1)),
    "numbers made of sizes": lambda x: x * (1 / x.size(0)) + x.size(1) * x.size(0) - x.size(1) ** 0.5,
    "the number of elements": lambda x: x.sum() / x.numel(),
    "sizes as outputs": lambda x: (x + 1, x.size(0), x.size(0) * x.size(1) + 1, 3, x.size(0) / 2),
    "the longer of two": lambda x: torch.zeros(torch.sym_max(x.size(0), x.size(1))) + 1,  # type: ignore  # SymInt
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "layer norm of a size": lambda x: nn.functional.layer_norm(x.transpose(1, 2), (x.size(1),)),
    "an einsum": lambda x: torch.einsum("bsd,btd->bst", x, x).relu(),
    "a constraint": lambda x: spmdir.constrain(x * 2, "dp: S(1)") + 1,
}
"""What a program does with sizes → the function."""


LONGER = [(4, 6), (5, 7), (6, 9)]
"""Batch and sequence for programs that halve sizes: torch tells a dimension of one element from others."""


@pytest.mark.parametrize("case", PROGRAMS)
def test_ops_take_sizes_among_their_arguments(case: str):
    function = Function(PROGRAMS[case])
    program = torch.export.export(function, (values(4, 6, 8),), dynamic_shapes=(({0: Dim.AUTO, 1: Dim.AUTO},),))
    for held in ("dp: S(0)", "dp: S(1)", "dp: S(0), tp: S(1)"):
        module = spmdir.import_fx(program, MESH, {"input:0": held})
        assert spmdir.print_ir(spmdir.parse(spmdir.print_ir(module))) == spmdir.print_ir(module)
        spmdir.run_passes(module, "propagate")
        text = spmdir.print_ir(module)
        assert spmdir.print_ir(spmdir.parse(text)) == text
        for batch, length in LONGER:
            x = values(batch, length, 8)
            assert_same(spmdir.simulate(module, [x]), function(x))


@pytest.mark.parametrize("case", PROGRAMS)
def test_the_same_traced_by_make_fx(case: str):
    function = PROGRAMS[case]
    module = spmdir.import_fx(make_fx(function, tracing_mode="symbolic")(values(4, 6, 8)), FOUR, {"x": "dp: S(0)"})
    assert open_sizes(module).symbols
    spmdir.run_passes(module, "propagate")
    for batch, length in LONGER:
        x = values(batch, length, 8)
        assert_same(spmdir.simulate(module, [x]), function(x))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_training_step_runs_at_all_sizes(optimizer: str):
    model = mlp()
    made = optimizer_of(optimizer, model, lr=0.1)
    step, state = spmdir.training_step(model, lambda m, x, y: (m(x) - y).square().mean(), made)
    graph = make_fx(step, tracing_mode="symbolic")(state, values(3, 5, 8), values(3, 5, 8))
    leaves = pytree.tree_leaves(state)
    inputs = {f"input:{len(leaves)}": "dp: S(0)", f"input:{len(leaves) + 1}": "dp: S(0)"}
    module = spmdir.import_fx(graph, MESH, {"up.weight": "tp: S(0)", "down.weight": "tp: S(1)", **inputs})
    spmdir.run_passes(module, "propagate")
    for batch, length in PAIRS[:4]:
        x, y = values(batch, length, 8), values(batch, length, 8) * 2
        assert_same(spmdir.simulate(module, [*leaves, x, y]), step(state, x, y))


def test_what_does_not_hold_at_a_size_is_decided_again_and_arguments_stay_as_they_are():
    module = spmdir.import_fx(exported(Function(_unflatten), values(4, 6, 8)), MESH, {"input:0": "dp: S(0)"})
    spmdir.run_passes(module, "propagate")
    decided = spmdir.print_ir(module)
    for batch, times in ((4, 0), (3, 1)):
        with mock.patch.object(PropagatePass, "apply", autospec=True, side_effect=PropagatePass.apply) as again:
            bound = spmdir.run_passes(spmdir.parse(decided), f"bind-sizes{{s0={batch} s1=6}}")
        assert again.call_count == times
        before, after = ir.main_function(module), ir.main_function(bound)
        assert (before.arg_attrs, before.res_attrs) == (after.arg_attrs, after.res_attrs)


def test_numbers_that_a_program_takes_may_be_sizes():
    module = Function(lambda x, n: x[: n // 2] * n + torch.arange(4))
    program = torch.export.export(module, (values(8, 4), 6), dynamic_shapes=(({0: Dim.DYNAMIC}, Dim.DYNAMIC),))
    imported = spmdir.import_fx(program, MESH, {"input:0": "dp: S(0)"})
    x = values(10, 4)
    for number in (4, 7):
        name = open_sizes(imported).symbols[1].name
        assert_same(spmdir.simulate(imported, [x], sizes={name: number}), module(x, number))
    with pytest.raises(SpmdirError, match="has no value"):
        spmdir.simulate(imported, [x])


def test_what_the_trace_relied_on_is_asked_of_the_sizes():
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1, 4).sum(0) + (x[:, 0] + y).sum()

    graph = make_fx(function, tracing_mode="symbolic")(values(6, 10), values(6))
    module = spmdir.import_fx(graph, MESH, {"x_1": "dp: S(0)"})
    for rows, columns in [(6, 10), (2, 8), (8, 5)]:
        x, y = values(rows, columns), values(rows)
        assert_same(spmdir.simulate(module, [x, y]), function(x, y))
    for x, y, message in [
        (values(3, 5), values(3), "violate"),
        (values(6, 10), values(5), "dimension 0 of 'y_1' is 5; expected s0 = 6"),
        (values(6, 10, 1), values(6), "'x_1' is of 3 dimensions; expected a tensor of 2 dimensions"),
        (
            values(6, 1),
            values(6),
            "dimension 1 of argument 'x_1' is 1; expected at least 2, for which the program was traced",
        ),
    ]:
        with pytest.raises(SpmdirError, match=message):
            spmdir.simulate(module, [x, y])


def test_assertions_in_a_graph_are_asked_of_the_sizes():
    class Asserting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._check(x.size(0) % 2 == 0)
            return x.view(x.size(0) // 2, -1) * 2

    program = torch.export.export(Asserting(), (values(6, 4),), dynamic_shapes=({0: Dim.AUTO},))
    module = spmdir.import_fx(program, MESH, {"x": "dp: S(0)"})
    assert_same(spmdir.simulate(module, [values(10, 4)]), values(10, 4).view(5, -1) * 2)
    with pytest.raises(ShardingError, match=r"violate|of the form"):
        spmdir.simulate(module, [values(5, 4)])


def test_sizes_that_depend_on_data_are_rejected_with_their_place():
    class Item(nn.Module):
        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            length = n.item()
            torch._check(length > 0)
            return torch.zeros(length) + x.sum()  # type: ignore

    program = torch.export.export(Item(), (values(3), torch.tensor(3)))
    with pytest.raises(UnsupportedError, match=r"aten\.item, which reads a number out of a tensor") as refusal:
        spmdir.import_fx(program, MESH)
    assert refusal.value.location and refusal.value.location.file == "test_symbolic_sizes.py"


def test_programs_of_open_sizes_are_lowered_for_numbers_alone():
    module = spmdir.import_fx(exported(mlp(), values(4, 6, 8)), MESH)
    with pytest.raises(ShardingError, match=r"size 's0' has no value; expected one, as in s0=4"):
        spmdir.lower_to_fx(module)
    with pytest.raises(SpmdirError, match=r"size 's0' is 2\.5; expected an int"):
        spmdir.lower_to_fx(module, sizes={"s0": 2.5, "s1": 3})  # type: ignore[dict-item]
    first = spmdir.lower_to_fx(module, sizes={"s0": 3, "s1": 5})
    second = spmdir.lower_to_fx(module, sizes={"s0": 4, "s1": 6})
    assert first.code != second.code
    assert ir.main_function(module).args[4].type != ir.main_function(module).args[3].type  # still symbolic
    assert open_sizes(module).hints == {"s0": 4, "s1": 6}


def test_a_report_is_about_the_example_sizes():
    module = spmdir.import_fx(
        exported(mlp(), values(4, 6, 8)), MESH, {"x": "dp: S(0)", "up.weight": "tp: S(0)"}, out_shardings=[""]
    )
    spmdir.run_passes(module, "propagate")
    bound = spmdir.parse(spmdir.print_ir(module))
    spmdir.run_passes(bound, "bind-sizes{s0=4 s1=6},insert-reshard,lower-reshard,fuse-collectives")
    assert spmdir.report.comm_report(module) == spmdir.report.comm_report(bound)
    assert spmdir.report.comm_report(module).count > 0


def test_the_type_of_a_size_tells_the_local_size_too():
    module = spmdir.import_fx(
        exported(Function(lambda x: x.view(x.size(0), x.size(1), 4, 2).relu()), values(4, 6, 8)),
        FOUR,
        {"input:0": "dp: S(1)"},
    )
    spmdir.run_passes(module, "propagate")
    assert ": !spmd.size<s1, dp>" in spmdir.print_ir(module)
    assert ": !spmd.size<s0>" in spmdir.print_ir(module)
    spmdir.run_passes(module, "bind-sizes{s0=5 s1=7},insert-reshard,lower-reshard,localize")
    assert "size = [5, size(7, dp), 4, 2]" in spmdir.print_ir(module)


def test_nothing_is_asked_of_torch_that_would_bind_its_sizes():
    function = Function(lambda x: (x.view(x.size(0), 64) + 1, x.transpose(0, 1).contiguous()))
    program = torch.export.export(function, (values(64, 64),), dynamic_shapes=(({0: Dim.DYNAMIC},),))
    environment = program.graph_module.graph._root.next.meta["val"].fake_mode.shape_env
    before = len(environment.guards), dict(environment.replacements)
    module = spmdir.import_fx(program, MESH)
    assert (len(environment.guards), dict(environment.replacements)) == before
    assert_same(spmdir.simulate(module, [values(6, 64)]), function(values(6, 64)))
    assert math.prod(open_sizes(module).hints.values()) == 64
