"""What an exported program becomes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.effects import has_effects

from spmdir.core.errors import UnsupportedError
from spmdir.dialects.ir import main_function
from spmdir.importer.importer import import_fx
from spmdir.importer.program import CONSTANT_BYTES
from spmdir.simulator.simulate import run_single, simulate
from tests.importer.imported_programs import MESH, Function, arguments, export, op, ops, results

X = torch.arange(24, dtype=torch.float64).reshape(4, 6)


def test_parameters_buffers_and_inputs_are_arguments_by_fqn():
    linear = nn.Linear(6, 3, dtype=torch.float64)
    program = export(lambda s, x: s.layer(x) * s.scale, X, layer=linear, scale=nn.Buffer(torch.ones(3)))
    module = import_fx(program, MESH)
    expected = {"layer.weight": "parameter", "layer.bias": "parameter", "scale": "buffer", "args_0": "input"}
    assert arguments(module, "kind") == expected


def test_small_tensors_outside_the_state_dict_are_constants():
    table = nn.Buffer(torch.arange(6.0), persistent=False)
    module = import_fx(export(lambda s, x: x + s.table + torch.tensor([1.0] * 6), X, table=table), MESH)
    assert list(arguments(module)) == ["args_0"]
    assert [o.argument["value"] for o in ops(module) if o.name == "spmd.constant"] == [
        bytes(torch.arange(6.0).view(torch.uint8).tolist()).hex(),
        "0000803f" * 6,
    ]


def test_large_tensors_outside_the_state_dict_are_buffers():
    table = nn.Buffer(torch.zeros(CONSTANT_BYTES // 4 + 1), persistent=False)
    module = import_fx(export(lambda s, x: x + s.table[0], X, table=table), MESH)
    assert arguments(module, "kind") == {"table": "buffer", "args_0": "input"}


def test_tuples_are_flattened_and_literal_outputs_are_kept():
    module = import_fx(export(lambda s, x: (x.split(2, 1)[1], None, [3, x, "a"]), X), MESH)
    outputs = main_function(module).attributes["spmd.outputs"].data
    assert outputs == (("outputs", ("#0", None, 3, "#1", "a")),)
    first, none, three, second, text = run_single(module, [X])
    assert torch.equal(first, X[:, 2:4])
    assert torch.equal(second, X)
    assert (none, three, text) == (None, 3, "a")


def test_an_output_that_nothing_names_is_called_as_its_value_is():
    assert results(import_fx(export(lambda s, x: x.exp(), X), MESH), "kind") == [("exp", "output")]


def test_mutated_buffers_become_results_after_the_outputs():
    program = export(lambda s, x: s.norm(x), X.float(), norm=nn.BatchNorm1d(6))
    module = import_fx(program, MESH, {"norm.running_mean": "tp: S(0)"})
    assert results(module, "kind")[1:] == [
        ("norm.running_mean", "mutation"),
        ("norm.running_var", "mutation"),
        ("norm.num_batches_tracked", "mutation"),
    ]
    assert results(module)[1] == ("norm.running_mean", "tp: S(0)")


def test_statistics_of_a_functional_batch_norm_are_mutations():
    def forward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, module.mean, module.var, training=True)

    state = {"mean": nn.Buffer(X[0] * 0), "var": nn.Buffer(X[0] * 0 + 1)}
    module = import_fx(export(forward, X, **state), MESH)
    assert results(module, "kind")[1:] == [("mean", "mutation"), ("var", "mutation")]
    _, mean, _ = run_single(module, [X], {name: buffer.clone() for name, buffer in state.items()})
    assert torch.allclose(mean, 0.1 * X.mean(0))


def test_mutated_inputs_become_results_with_the_inputs_sharding():
    module = import_fx(export(lambda s, x, y: (x.add_(1), x * y)[1], X.clone(), X), MESH, {"input:0": "dp: S(0)"})
    assert results(module) == [("mul", None), ("args_0", "dp: S(0)")]
    out, new = run_single(module, [X, X.clone()])
    assert torch.equal(new, X + 1)
    assert torch.equal(out, (X + 1) * X)


def test_numbers_are_specialised_and_keep_their_position():
    module = import_fx(export(lambda s, n, x: x * n, 3, X), MESH, {"input:1": "dp: S(0)"})
    assert arguments(module) == {"args_1": "dp: S(0)"}
    assert op(module, "aten.mul.Tensor").argument == {"other": 3}


def test_sizes_are_spelled_out():
    module = import_fx(export(lambda s, x: x.view(2, -1).expand(3, -1, -1).reshape(-1, 2), X), MESH)
    assert [o.argument for o in ops(module)] == [{"size": (2, 12)}, {"size": (3, 2, 12)}, {"shape": (36, 2)}]


def test_flatten_and_unflatten_are_reshapes():
    module = import_fx(export(lambda s, x: x.unflatten(1, (2, -1)).flatten(0, 1), X), MESH)
    assert [(o.name, o.argument["shape"]) for o in ops(module)] == [
        ("aten.reshape", (4, 2, 3)),
        ("aten.reshape", (8, 3)),
    ]


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        ("...j,jk", "abj,jk->abk"),
        ("i...j, jk -> ki...", "iaj,jk->kia"),
        ("b...j,jk->b", "baj,jk->b"),
        ("zAj,jk", "zAj,jk->Akz"),
    ],
)
def test_einsum_equations_name_every_dimension_and_the_result(written: str, spelled: str):
    x, w = torch.rand(2, 4, 6), torch.rand(6, 3)
    module = import_fx(export(lambda s, x, w: torch.einsum(written, x, w), x, w), MESH, fold_views=False)
    assert op(module, "aten.einsum").argument["equation"] == spelled
    assert torch.equal(run_single(module, [x, w])[0], torch.einsum(written, x, w))


def test_an_ellipsis_may_stand_for_fewer_dimensions_in_one_operand():
    x, y = torch.rand(2, 1, 4, 6), torch.rand(3, 1, 6)
    module = import_fx(export(lambda s, x, y: torch.einsum("...ij,...ij->...", x, y), x, y), MESH)
    assert op(module, "aten.einsum").argument["equation"] == "abij,bij->ab"
    assert torch.allclose(simulate(module, [x, y])[0], torch.einsum("...ij,...ij->...", x, y))


def test_one_hot_with_a_number_of_classes_has_a_fixed_shape():
    indices = torch.tensor([0, 2, 1])
    module = import_fx(export(lambda s, i: nn.functional.one_hot(i, 4), indices), MESH)
    assert torch.equal(run_single(module, [indices])[0], nn.functional.one_hot(indices, 4))


def test_element_types_are_literals_and_devices_are_dropped():
    module = import_fx(export(lambda s, x: torch.zeros(2, dtype=torch.int64, device="cpu") + x.sum().long(), X), MESH)
    assert str(op(module, "aten.zeros").argument["dtype"]) == "i64"
    assert set(op(module, "aten.zeros").argument) == {"size", "dtype"}
    assert str(op(module, "aten._to_copy").argument["dtype"]) == "i64"


def test_a_memory_format_is_a_string_and_the_default_one_nothing():
    image = torch.zeros(1, 2, 3, 3)
    module = import_fx(export(lambda s, x: x.clone(memory_format=torch.channels_last).clone(), image), MESH)
    assert [o.argument for o in ops(module)] == [{"memory_format": "channels_last"}, {}]


def test_one_number_stands_for_a_list_of_equal_ones():
    convolution = nn.Conv2d(2, 2, 3, padding=1)
    module = import_fx(export(lambda s, x: s.c(x), torch.zeros(1, 2, 4, 4), c=convolution), MESH)
    assert op(module, "aten.conv2d").argument["padding"] == (1, 1)


def test_what_changes_no_value_is_dropped():
    def forward(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x.detach().to(x.dtype).view(4, 6), 0.5, training=False)
        return x.expand(4, 6).detach() + 1

    assert [o.name for o in ops(import_fx(export(forward, X), MESH))] == ["aten.add.Tensor"]


def test_dropout_in_training_is_kept():
    module = import_fx(export(lambda s, x: nn.functional.dropout(x, 0.5, training=True), X), MESH)
    assert op(module, "aten.dropout").argument == {"p": 0.5, "train": True}


def test_code_that_no_output_needs_is_dropped():
    module = import_fx(export(lambda s, x: (x.exp(), x + 1)[1], X), MESH)
    assert [o.name for o in ops(module)] == ["aten.add.Tensor"]


def test_graphs_under_no_grad_are_inlined():
    def forward(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.cos()
        return x * y

    program = export(forward, X)
    assert any("wrap_with_set_grad_enabled" in str(node.target) for node in program.graph.nodes)
    assert [o.name for o in ops(import_fx(program, MESH))] == ["aten.cos", "aten.mul.Tensor"]


def test_autocast_becomes_casts():
    def forward(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x.t()

    module = import_fx(export(forward, X.float()), MESH)
    assert [o.name for o in ops(module)].count("aten._to_copy") == 2
    assert run_single(module, [X.float()])[0].dtype == torch.bfloat16


def test_as_strided_that_is_a_view_is_a_view():
    module = import_fx(export(lambda s, x: x.as_strided((6, 4), (4, 1)), X), MESH)
    assert op(module, "aten.view").argument == {"size": (6, 4)}


def test_optional_tensors_keep_their_places():
    index = torch.tensor([1, 0])
    module = import_fx(export(lambda s, x, i: x[:, i], X, index), MESH)
    assert op(module, "aten.index.Tensor").call().slots == (0, (None, 1))


def test_a_missing_trailing_tensor_leaves_no_gap():
    linear = nn.Linear(6, 3, bias=False, dtype=torch.float64)
    call = op(import_fx(export(lambda s, x: s.l(x), X, l=linear), MESH), "aten.linear").call()
    assert call.structure is None
    assert len(call.operands) == 2


def test_all_stages_of_an_exported_program_compute_what_eager_does():
    model = Function(lambda s, x: nn.functional.layer_norm(s.l(x).relu(), (3,)), l=nn.Linear(6, 3, dtype=torch.float64))
    program = torch.export.export(model, (X,))
    for stage in (program, program.run_decompositions({}), program.run_decompositions()):
        (out,) = run_single(import_fx(stage, MESH), [X], model.state_dict())
        torch.testing.assert_close(out, model(X))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_a_tied_parameter_is_one_argument_that_each_of_its_names_finds():
    model = _Tied().double()
    program = torch.export.export(model, (X,))
    for key in ("first.weight", "second.weight"):
        module = import_fx(program, MESH, {key: "tp: S(0)"})
        assert list(arguments(module).values()) == ["tp: S(0)", None]
        torch.testing.assert_close(run_single(module, [X], program.state_dict)[0], model(X))


def test_checks_that_decompositions_order_by_tokens_go():
    matrix = X[:, :4] + 30 * torch.eye(4, dtype=torch.float64)
    program = export(lambda s, x: torch.linalg.solve(x, x.sum(0)) + x.inverse()[0], matrix).run_decompositions()
    # torch 2.13 orders checks by tokens, those before it do not.
    assert ("token" in program.graph_module.code) == has_effects(torch.ops.aten._linalg_check_errors.default)
    module = import_fx(program, MESH)
    assert list(arguments(module)) == ["args_0"]
    (found,) = simulate(module, [matrix])
    torch.testing.assert_close(found, torch.linalg.solve(matrix, matrix.sum(0)) + matrix.inverse()[0])


def test_factories_name_the_default_element_type_of_the_trace():
    torch.set_default_dtype(torch.float64)
    try:
        program = export(lambda s, x: x + torch.randn(6) + torch.rand(6) + torch.eye(6)[0] + torch.linspace(0, 1, 6), X)
    finally:
        torch.set_default_dtype(torch.float32)
    factories = [one for one in ops(import_fx(program, MESH)) if not one.operands]
    assert [one.name for one in factories] == ["aten.randn", "aten.rand", "aten.eye", "aten.linspace"]
    assert {str(one.argument["dtype"]) for one in factories} == {"f64"}


def test_an_export_with_one_example_tensor_for_two_arguments_is_an_error():
    program = torch.export.export(Function(lambda s, x, y: x - y), (X, X))
    with pytest.raises(UnsupportedError, match="'args_0' and 'args_1' are the same tensor"):
        import_fx(program, MESH)
