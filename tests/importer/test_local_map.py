"""A user's function on local shards: results, gradients, names, costs and errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.errors import ParseError, ShardingError, SpmdirError, UnsupportedError
from spmdir.dialects.values import sharding_of
from spmdir.importer.importer import import_fx
from spmdir.importer.local_map import local_map
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.report.grouped_costs import cost_table
from spmdir.simulator.simulate import simulate
from spmdir.simulator.value_check import check_values
from tests.importer import local_map_cases
from tests.importer.imported_programs import ops
from tests.importer.local_map_cases import HEADS, Block, attend, attention
from tests.lowering.gloo_ranks import on_ranks

MESH = spmdir.Mesh({"dp": 2, "tp": 3})


def product(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x @ w, (w * w).sum(1), (x > 0).to(torch.int64)


PRODUCT = local_map(
    product, ("dp: S(0), tp: S(1)", "tp: S(0)"), ("dp: S(0), tp: P(sum)", "tp: S(0)", "dp: S(0), tp: S(1)")
)
"""`x` has shards of rows and columns; the rows of `w` are replicated on `dp`, so its gradient is partial there."""


def scale(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x * w, w.exp(), b * w.sum()


SCALE = local_map(scale, ("tp: S(0), dp: S(0)", "", "tp: P(sum)"), ("tp: S(0), dp: S(0)", "", "tp: P(sum)"))
"""Two axes shard one dimension, the second result is replicated, and the last argument and result are partial."""


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def loss_and_gradients(product: Any, scale: Any) -> Any:
    """Return a function of x, w, v, b that chains both functions, and returns all their results and gradients."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        x, w, v, b = (tensor.detach().requires_grad_() for tensor in inputs)
        y, squares, signs = product(x, w)
        z, powers, shifted = scale(y, v, b)
        loss = z.square().sum() + (powers * squares.sum()).sum() + (shifted * shifted).sum()
        return loss, z, powers, shifted, signs, *torch.autograd.grad(loss, (x, w, v, b))

    return run


INPUTS = draw(5, 7), draw(7, 4), draw(4), draw(4)


def test_on_one_device_it_is_the_function():
    for result, expected in zip(
        loss_and_gradients(PRODUCT, SCALE)(*INPUTS), loss_and_gradients(product, scale)(*INPUTS), strict=True
    ):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("plan", [{}, {"input:0": "dp: S(0), tp: S(1)", "input:1": "tp: S(0)"}, {"input:*": ""}])
def test_simulated_ranks_compute_results_and_gradients_of_one_device(plan):
    module = import_fx(make_fx(loss_and_gradients(PRODUCT, SCALE))(*INPUTS), MESH, plan)
    for result, expected in zip(simulate(module, INPUTS), loss_and_gradients(product, scale)(*INPUTS), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_ops_have_exactly_the_declared_shardings():
    module = import_fx(make_fx(loss_and_gradients(PRODUCT, SCALE))(*INPUTS), MESH, {"input:*": ""})
    decided = run_passes(module, "propagate,insert-reshard")
    calls = [found for found in ops(decided) if found.name.startswith("local_map.")]
    for call in calls:
        assert [str(sharding_of(operand)) for operand in call.tensors] == list(call.argument["in_shardings"])
        assert list(map(str, call.shardings)) == list(call.argument["out_shardings"])
    assert [call.argument["out_shardings"] for call in calls if call.name.endswith("_backward")] == [
        ("tp: S(0), dp: S(0)", "dp: P(sum), tp: P(sum)", "dp: P(sum)"),
        ("dp: S(0), tp: S(1)", "tp: S(0), dp: P(sum)"),
    ]


@pytest.mark.parametrize("strict", [False, True])
def test_exports_record_one_op_for_a_call(strict):
    torch.manual_seed(0)
    model, x = Block().double(), draw(4, 6, 8)
    module = import_fx(torch.export.export(model, (x,), strict=strict), MESH, {"x": "dp: S(0)"})
    names = [found.name for found in ops(module) if not found.name.startswith("aten.")]
    assert len(names) == 1 and names[0].startswith("local_map.local_map_cases_attend_")
    (result,) = simulate(module, [x], model.state_dict())
    torch.testing.assert_close(result, model(x))


def test_a_training_step_of_a_transformer_block_is_that_of_one_device():
    torch.manual_seed(0)
    model, x, y = Block().double(), draw(4, 6, 8), draw(4, 8, 6).transpose(1, 2)
    loss = lambda model, x, y: (model(x) - y).square().mean()  # noqa: E731
    step, state = spmdir.training_step(model, loss, torch.optim.AdamW(model.parameters()))
    module = import_fx(
        make_fx(step, tracing_mode="fake")(state, x, y), MESH, {"qkv.weight": "tp: S(0)", "input:*": "dp: S(0)"}
    )
    leaves = pytree.tree_leaves((state, x, y))
    for result, expected in zip(simulate(module, leaves), pytree.tree_leaves(step(state, x, y)), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)


def test_torch_func_differentiates_it():
    x, w = INPUTS[:2]
    gradient = lambda product: torch.func.grad(lambda x: product(x, w)[0].square().sum())(x)  # noqa: E731
    assert torch.equal(gradient(PRODUCT), gradient(product))


def test_second_gradients_are_an_error():
    x = INPUTS[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(PRODUCT(x, INPUTS[1])[0].square().sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match="'product' of a local map is differentiated twice"):
        gradient.sum().backward()


def test_the_gradient_of_an_argument_that_needs_none_is_not_computed():
    def gradient(x: Tensor, w: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(PRODUCT(x, w)[0].sum(), x)[0]

    module = import_fx(make_fx(gradient)(*INPUTS[:2]), MESH)
    (backward,) = (found for found in ops(module) if found.name.endswith("_backward"))
    assert backward.argument["wanted"] == (0,) and len(backward.results) == 1


def attend_with_cost(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, 1.0)


def attend_at_a_price(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, 1.0)


def attend_at_a_price_by_shape(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, 1.0)


@pytest.mark.parametrize(
    ("mapped", "per_rank"),
    [
        (lambda *tensors: attention(*tensors, 0.5), 2 * (2 * 2 * 6 * 6 * 2 * 2)),  # [2, 2, 6, 2] @ [2, 2, 2, 6], twice
        (local_map(attend_at_a_price, (HEADS,) * 3, HEADS, flops=7e6), 7e6),
        (
            local_map(
                attend_at_a_price_by_shape, (HEADS,) * 3, HEADS, flops=lambda q, k, v: q[0] * q[1] * 100.0 + k[2] + v[3]
            ),
            2 * 2 * 100.0 + 6 + 2,
        ),
    ],
    ids=["counted", "number", "function of local shapes"],
)
def test_the_cost_is_that_of_the_local_shapes(mapped, per_rank):
    q = draw(4, 4, 6, 2)
    module = import_fx(make_fx(lambda q: mapped(q, q, q))(q), spmdir.Mesh({"dp": 2, "tp": 2}), {"q_1": HEADS})
    for pipeline in ("propagate,insert-reshard,lower-reshard", "propagate,insert-reshard,lower-reshard,localize"):
        table = cost_table(run_passes(module, pipeline), by="kind")
        (flops,) = (row.total("flops") for row in table.rows if row.labels[0].startswith("local_map"))
        assert flops == pytest.approx(per_rank)


def test_names_are_equal_in_all_processes(tmp_path: Path):
    (tmp_path / "kernels.py").write_text(
        "import torch, spmdir\n"
        "def double(x):\n"
        "    return x * 2\n"
        "mapped = spmdir.local_map(double, ('dp: S(0)',), 'dp: S(0)')\n"
        "if __name__ == '__main__':\n"
        "    print([op for op in dir(torch.ops.local_map)])\n"
        "    print(sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith('local_map')))\n"
    )
    names = []
    for arguments in (
        ["kernels.py"],
        [
            "-c",
            "import kernels, runpy, torch; print(); print(sorted(name for name in "
            "torch._C._dispatch_get_all_op_names() if name.startswith('local_map')))",
        ],
        [
            "-c",
            "import spmdir, torch; spmdir.plugins.load_plugin('kernels.py'); print(); print(sorted(name for name in "
            "torch._C._dispatch_get_all_op_names() if name.startswith('local_map')))",
        ],
    ):
        run = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        names.append(run.stdout.splitlines()[1])
    assert names[0] == names[1] == names[2] and "local_map::kernels_double_" in names[0]


def identity(x: Tensor) -> Tensor:
    return x


def half(x: Tensor) -> Tensor:
    return x[: len(x) // 2]


def import_call(mapped: Any, *inputs: Tensor, mesh: spmdir.Mesh = MESH) -> Any:
    return import_fx(make_fx(lambda *inputs: mapped(*inputs))(*inputs), mesh)


def test_a_result_that_is_an_argument_is_copied():
    x = draw(4)
    (result,) = (local_map(identity, ("dp: S(0)",), "dp: S(0)")(x),)
    assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    ("inputs", "outputs", "error", "message"),
    [
        (("dp: S(0)", ""), "dp: S(0)", SpmdirError, r"in_shardings has 2 entries, but 'identity' has 1 parameters: x"),
        ("dp: S(0)", "dp: S(0)", SpmdirError, r"expected a tuple with one sharding for each argument"),
        (("dp: S(0)",), "dp: P(max)", ShardingError, r"P\(max\) on axis 'dp'; expected R, P\(sum\) or an exact shard"),
        (("dp: ?",), "dp: S(0)", ShardingError, r"in_shardings\[0\] has \? on axis 'dp'"),
        (("dp S(0)",), "dp: S(0)", ParseError, r"in_shardings\[0\]: 'dp S\(0\)' is not part of a sharding"),
        ((3,), "dp: S(0)", SpmdirError, r"in_shardings\[0\] is 3 of type int; expected a sharding"),
    ],
)
def test_wrong_declarations_are_errors(inputs, outputs, error, message):
    with pytest.raises(error, match=message):
        local_map(identity, inputs, outputs)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (("ep: S(0)",), "ep: S(0)", r"tensor argument 0 of the local map 'identity': axis 'ep' is not in mesh"),
        (("dp: S(2)",), "", r"tensor argument 0 of the local map 'identity'.*2"),
        (("dp: S(0)",), "", r"returns tensor<2xf64> as result 0 on the shards of a rank; expected tensor<4xf64>"),
    ],
)
def test_declarations_that_do_not_fit_the_program_are_errors_of_the_import(inputs, outputs, message):
    with pytest.raises(SpmdirError, match=message):
        import_call(local_map(identity, inputs, outputs), draw(4))


def test_a_result_of_another_shape_names_both_shapes():
    with pytest.raises(ShardingError, match=r"returns tensor<1xf64> as result 0.*expected tensor<2xf64>, the shard of"):
        import_call(local_map(half, ("dp: S(0)",), ""), draw(4))


def normalize(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def test_a_false_declaration_is_found_by_the_check_of_all_values():
    module = import_call(local_map(normalize, ("dp: S(0)",), "dp: S(0)"), draw(4, 4))
    check_values(module, [draw(4, 4)], None, 0, Pipeline())
    module = import_call(local_map(normalize, ("dp: S(1)",), "dp: S(1)"), draw(4, 4))
    with pytest.raises(SpmdirError, match=r"local_map\.\w+ differs from one device by .*: its operands are right"):
        check_values(module, [draw(4, 4)], None, 0, Pipeline())


def test_a_text_without_its_function_names_the_module_to_load():
    module = import_call(local_map(normalize, ("dp: S(0)",), "dp: S(0)"), draw(4, 4))
    text = spmdir.print_ir(module).replace("test_local_map_normalize", "unknown")
    with pytest.raises(UnsupportedError, match=r"load 'tests\.importer\.test_local_map', which defines it"):
        simulate(spmdir.parse(text), [draw(4, 4)])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (('["dp: S(0)"], literals', '["dp: S(0)", ""], literals'), "'in_shardings' has 2 shardings for 1 operands"),
        (('["dp: S(0)"], literals', '["ep: S(0)"], literals'), "axis 'ep' is not in mesh"),
        (('["dp: S(0)"], literals', '["dp: ?"], literals'), "leaves axis 'dp' open"),
        (('["dp: S(0)"], literals', '["dp: S(2)"], literals'), "2"),
        (('["dp: S(0)"], literals', "3, literals"), "'in_shardings' is not a list of texts"),
    ],
)
def test_the_verifier_checks_declarations_in_texts(edit, message):
    text = spmdir.print_ir(import_call(local_map(normalize, ("dp: S(0)",), "dp: S(0)"), draw(4, 4)))
    with pytest.raises(SpmdirError, match=message):
        spmdir.parse(text.replace(*edit))


def test_a_function_that_fails_on_local_shapes_is_an_error():
    def fixed(x: Tensor) -> Tensor:
        return x.reshape(4, 1)

    with pytest.raises(UnsupportedError, match=r"fixed' of a local map fails on the shards of a rank, \(tensor<2xf64>"):
        import_call(local_map(fixed, ("dp: S(0)",), "dp: S(0)"), draw(4))


def test_two_functions_with_one_name_are_an_error():
    def make(shift: Any) -> Any:
        def shifted(x: Tensor) -> Tensor:
            return x + shift[0]

        return local_map(shifted, ("dp: S(0)",), "dp: S(0)")

    numbers = [1]
    assert make(numbers)(torch.ones(1)) == make(numbers)(torch.ones(1)) == 2
    with pytest.raises(UnsupportedError, match=r"shifted' .* has the name and shardings of another one at "):
        make([2])


def test_closures_over_numbers_are_different_functions():
    def make(shift: float) -> Any:
        def shifted(x: Tensor) -> Tensor:
            return x + shift

        return local_map(shifted, ("dp: S(0)",), "dp: S(0)")

    assert [make(shift)(torch.ones(1)).item() for shift in (1.0, 2.0)] == [2, 3]


GLOBAL = torch.ones(1)


def test_captured_tensors_are_an_error():
    bias = torch.ones(1)

    def closure(x: Tensor) -> Tensor:
        return x + bias

    def default(x: Tensor, y: Tensor = bias) -> Tensor:
        return x + y

    for function, inputs in ((closure, [""]), (default, ["", ""]), (lambda x: x + GLOBAL, [""])):
        with pytest.raises(UnsupportedError, match=r"captures the tensor '(bias|y|GLOBAL)'; expected its tensors"):
            local_map(function, inputs, "")
    with pytest.raises(SpmdirError, match="expected a function with a name"):
        local_map(nn.Linear(2, 2), ("",), "")


def test_effects_are_errors():
    def writes(x: Tensor) -> Tensor:
        return x[:1].mul_(2) + x

    def sums(x: Tensor) -> Tensor:
        return torch.ops._c10d_functional.all_reduce(x, "sum", "0")

    def drops(x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, True)

    def returns_number(x: Tensor) -> Any:
        return 3

    for function, message in (
        (writes, "writes to its tensor argument 0"),
        (sums, "calls the collective _c10d_functional.all_reduce; expected ops on the shards of one rank"),
        (drops, "draws random numbers with aten"),
        (returns_number, "returns a int as result 0; expected a tensor: compute other values outside of it"),
    ):
        mapped = local_map(function, ("dp: S(0)",), "dp: S(0)")
        with pytest.raises(UnsupportedError, match=message):
            make_fx(mapped, tracing_mode="fake")(draw(4))
    with pytest.raises(UnsupportedError, match="writes to its tensor argument 0"):
        local_map(writes, ("dp: S(0)",), "dp: S(0)")(draw(4))


def test_wrong_calls_are_errors():
    q = draw(1, 1, 2, 2)
    for arguments, message in (
        ((q, q, q), "is called with 3 positional and 0 keyword arguments; expected 4 arguments: q, k, v, scale"),
        ((q, q, 3, 1.0), "is called with 3 in place of a tensor"),
        ((q, q, q, q), "is called with a tensor where in_shardings has None"),
        ((q, q, q, [1.0]), r"is called with the argument \[1.0\] of type list"),
        ((q, q, q, float("inf")), "is called with the argument inf of type float"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            attention(*arguments)


def test_literals_and_names_of_arguments_reach_the_function():
    q = draw(1, 1, 2, 2)
    assert torch.equal(attention(q, v=q, k=q, scale=0.5), attend(q, q, q, 0.5))
    (mapped,) = ops(import_call(lambda q: attention(q, q, q, 0.25), draw(2, 3, 2, 2)))
    assert mapped.argument["literals"] == "(0.25,)"


def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: torch.where(i >= j, score, -float("inf")))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_runs_on_ranks_and_is_counted():
    q = torch.randn(2, 4, 16, 8)
    module = import_fx(
        make_fx(local_map(flex, (HEADS,) * 3, HEADS), tracing_mode="fake")(q, q, q), spmdir.Mesh({"dp": 2, "tp": 2})
    )
    (mapped,) = ops(module)
    assert mapped.argument["flops_per_element"] == 2 * 2 * 16  # two products with 16 keys
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(simulate(module, [q, q, q])[0], expected)


@pytest.mark.gloo
def test_training_on_real_ranks_is_that_of_one_device(tmp_path):
    for differences in on_ranks(4, local_map_cases.run, tmp_path):
        assert set(differences) == {"sharded_steps", "parallel_steps"} and max(differences.values()) < 1e-12
