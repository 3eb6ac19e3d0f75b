"""The graph of one rank: names, arguments, results, constants, devices."""

import pytest
import torch

from spmdir.analysis.local_programs.type_check_cache import trust
from spmdir.core.errors import ShardingError, SpmdirError, UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator.simulate import run_single, simulate


def lower(body, arguments="%x: tensor<4x6xf32>", mesh="<a = 2>", rank=0):
    return lower_to_fx(program(body, arguments, mesh), rank)


def program(body, arguments="%x: tensor<4x6xf32>", mesh="<a = 2>"):
    """A program of replicated arguments; the last line of `body` says what is returned."""
    replicated = [f"{part.strip()} {{spmd.sharding = #spmd.sharding<@mesh>}}" for part in arguments.split(",") if part]
    *ops, results = body.strip().splitlines()
    types = results.partition(":")[2]
    header = f"spmd.mesh @mesh {mesh}\nfunc.func @main({', '.join(replicated)}) -> ({types}) {{"
    return parse("\n".join([header, *ops, f"return {results}", "}"]))


def calls(graph_module):
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def test_values_keep_their_names_and_arguments_become_identifiers():
    gm = lower("%hidden_1 = aten.relu(%2) : tensor<4x6xf32> <>\n%hidden_1 : tensor<4x6xf32>", "%2: tensor<4x6xf32>")
    assert [node.name for node in gm.graph.nodes][1] == "hidden_1"
    assert gm.graph.find_nodes(op="placeholder")[0].target.isidentifier()


@pytest.mark.parametrize("exponent", ["false", "true"])
def test_the_element_type_that_kernels_give_counts_where_that_of_fake_tensors_differs(exponent):
    x = torch.tensor([True, False]).expand(2, 2).contiguous()
    body = f"%0 = aten.pow.Tensor_Scalar(%x) {{exponent = {exponent}}} : tensor<2x2xi1> <>\n%0 : tensor<2x2xi1>"
    (y,) = simulate(program(body, "%x: tensor<2x2xi1>"), [x])
    assert torch.equal(y, x.pow(exponent == "true"))


@pytest.mark.parametrize(("op", "reduction"), [("any", "max"), ("all", "min")])
def test_truth_of_bytes_is_a_byte_and_partial_over_their_shards(op, reduction):
    text = f"""
spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<4x2xui8> {{spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}})
    -> (tensor<ui8>, tensor<2xui8>) {{
  %0 = aten.{op}(%x) : tensor<ui8> <a: P({reduction})>
  %1 = aten.{op}.dim(%x) {{dim = 0, keepdim = false}} : tensor<2xui8> <a: P({reduction})>
  return %0, %1 : tensor<ui8>, tensor<2xui8>
}}
"""
    module = run_passes(parse(text), "propagate,insert-reshard")
    x = torch.tensor([[0, 2], [0, 3], [0, 4], [5, 6]], dtype=torch.uint8)
    whole, columns = simulate(module, [x])
    torch.testing.assert_close((whole, columns), (getattr(x, op)(), getattr(x, op)(0)))


def test_nodes_say_where_they_come_from():
    gm = lower("%0 = aten.relu(%x) : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>")
    assert calls(gm)[0].meta["stack_trace"] == 'File "<text>", line 3, in aten.relu'


def test_arguments_fill_the_schema_by_name():
    gm = lower(
        """
        %0 = aten.sum.dim_IntList(%x) {dim = [1], dtype = f64, keepdim = true} : tensor<4x1xf64> <>
        %0 : tensor<4x1xf64>
        """
    )
    (node,) = calls(gm)
    assert node.args[1:] == ([1], True)
    assert node.kwargs == {"dtype": torch.float64}


def test_numbers_may_stand_for_tensors():
    gm = lower("%0 = aten.add.Tensor(%x) {other = 2.5, alpha = 2} : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>")
    assert torch.equal(gm(torch.ones(4, 6))[0], torch.full((4, 6), 6.0))


def test_a_missing_tensor_without_a_default_is_given_as_none():
    gm = lower(
        """
        %0, %1, %2, %3 = aten._embedding_bag(%w, %i, %o) : tensor<2x6xf32> <>, tensor<4xi64> <>, \
tensor<2xi64> <>, tensor<2xi64> <>
        %4 = aten._embedding_bag_backward(%g, %i, %o, %1, %2, %3) {mode = 0, num_weights = 5, padding_idx = -1, \
scale_grad_by_freq = false, sparse = false} : tensor<5x6xf32> <>
        %0, %4 : tensor<2x6xf32>, tensor<5x6xf32>
        """,
        "%w: tensor<5x6xf32>, %i: tensor<4xi64>, %o: tensor<2xi64>, %g: tensor<2x6xf32>",
    )
    index, offsets = torch.tensor([1, 2, 2, 4]), torch.tensor([0, 2])
    _, gradient = gm(torch.ones(5, 6), index, offsets, torch.ones(2, 6))
    assert gradient[:, 0].tolist() == [0, 1, 2, 0, 1]


def test_memory_formats_are_named():
    gm = lower('%0 = aten.clone(%x) {memory_format = "contiguous_format"} : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>')
    assert calls(gm)[0].kwargs == {"memory_format": torch.contiguous_format}


def test_lists_and_missing_tensors_keep_their_places():
    gm = lower(
        """
        %0 = aten.index.Tensor(%x, [none, %i]) : tensor<4x2xf32> <>
        %0 : tensor<4x2xf32>
        """,
        "%x: tensor<4x6xf32>, %i: tensor<2xi64>",
    )
    x = torch.randn(4, 6)
    assert torch.equal(gm(x, torch.tensor([5, 0]))[0], x[:, [5, 0]])
    gm = lower("%0 = aten.cat([%x, %x]) {dim = 1} : tensor<4x12xf32> <>\n%0 : tensor<4x12xf32>")
    assert torch.equal(gm(x)[0], torch.cat([x, x], 1))


def test_several_results_and_absent_ones():
    gm = lower(
        """
        %y, %mean, %rstd = aten.native_layer_norm(%x, none, none) {normalized_shape = [6], eps = 1.0e-05} \
        : tensor<4x6xf32> <>, none, tensor<4x1xf32> <>
        %y, %rstd : tensor<4x6xf32>, tensor<4x1xf32>
        """
    )
    x = torch.randn(4, 6)
    expected = torch.native_layer_norm(x, [6], None, None, 1e-5)
    for got, wanted in zip(gm(x), expected[::2], strict=True):
        assert torch.equal(got, wanted)
    assert {node.name for node in gm.graph.nodes} >= {"y", "rstd"}


def test_an_op_that_returns_a_list_gives_its_entries():
    gm = lower(
        """
        %a, %b = aten.split.Tensor(%x) {split_size = 4, dim = 1} : tensor<4x4xf32> <>, tensor<4x2xf32> <>
        %b, %a : tensor<4x2xf32>, tensor<4x4xf32>
        """
    )
    x = torch.randn(4, 6)
    assert torch.equal(torch.cat([*gm(x)], 1), torch.cat([x[:, 4:], x[:, :4]], 1))


def test_constants_travel_with_the_module():
    gm = lower('%c = spmd.constant value "000080bf00000040" : tensor<2xf32> <>\n%c : tensor<2xf32>')
    assert gm(torch.zeros(4, 6))[0].tolist() == [-1.0, 2.0]
    empty = lower('%c = spmd.constant value "" : tensor<0x3xi64> <>\n%c : tensor<0x3xi64>')
    assert empty(torch.zeros(4, 6))[0].shape == (0, 3)


def test_tensors_made_from_nothing_are_made_where_the_inputs_are():
    text = """
    %0 = aten.full() {size = [2], fill_value = 1.0, dtype = f32, device = "cuda"} : tensor<2xf32> <>
    %0 : tensor<2xf32>
    """
    assert lower(text)(torch.empty(4, 6, device="meta"))[0].device.type == "meta"
    assert lower(text, arguments="")()[0].device.type == "cpu"


def test_views_do_not_depend_on_strides():
    gm = lower("%0 = aten.view(%x) {size = [24]} : tensor<24xf32> <>\n%0 : tensor<24xf32>")
    x = torch.randn(6, 4).t()
    assert torch.equal(gm(x)[0], x.reshape(24))


def test_sizes_and_offsets_are_numbers_of_the_rank():
    text = "%0 = aten.arange() {end = 7, dtype = i64} : tensor<7xi64> <a: S(0)>\n%0 : tensor<7xi64>"
    assert [lower(text, "", "<a = 3>", rank)()[0].tolist() for rank in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_an_op_that_torch_lacks_is_rejected_with_its_place():
    module = program("%0 = mylib.no_such_op(%x) : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>")
    with pytest.raises(UnsupportedError, match=r"has no op 'mylib\.no_such_op'") as caught:
        lower_to_fx(module)
    assert str(caught.value.location) == "<text>:3:1"


def test_an_argument_that_the_op_lacks_is_rejected():
    module = program("%0 = aten.absolute(%x) {slope = 1} : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>")
    with pytest.raises(UnsupportedError, match="has no argument 'slope'; expected self"):
        lower_to_fx(module)


def test_a_rank_outside_the_mesh_is_rejected():
    with pytest.raises(UnsupportedError, match="rank 2 is not in the mesh of 2 ranks; expected 0 to 1"):
        lower("%0 = aten.relu(%x) : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>", rank=2)


def test_the_module_that_is_lowered_stays_as_it_was():
    module = program("%0 = aten.relu(%x) : tensor<4x6xf32>\n%0 : tensor<4x6xf32>")
    before = str(module)
    lower_to_fx(module)
    simulate(module, [torch.zeros(4, 6)])
    run_single(module, [torch.zeros(4, 6)])
    assert str(module) == before


def test_a_device_mesh_with_other_axes_is_rejected():
    class Other:
        mesh_dim_names = ("a",)
        mesh = torch.arange(4)

        def get_coordinate(self):
            return [0]

    with pytest.raises(ShardingError, match=r"device mesh has axes \{'a': 4\}, the module has \{'a': 2\}"):
        lower_to_fx(program("%0 = aten.relu(%x) : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>"), device_mesh=Other())


UNTRUE = [
    ("%0 = aten.absolute(%x) : tensor<2x6xf32> <>\n%0 : tensor<2x6xf32>", "torch returns tensor<4x6xf32>"),
    ("%0 = aten.absolute(%x) : tensor<4x6xf64> <>\n%0 : tensor<4x6xf64>", "torch returns tensor<4x6xf32>"),
    (
        "%0, %1 = aten.absolute(%x) : tensor<4x6xf32> <>, none\n%0 : tensor<4x6xf32>",
        "has 2 results; expected 1, as torch returns",
    ),
    ("%0 = aten.cat([%x, %x]) {dim = 0} : tensor<7x6xf32> <>\n%0 : tensor<7x6xf32>", "size 7; expected w0 = 8"),
    ("%0 = aten.slice.Tensor(%x) {end = 3} : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>", "size 4; expected w0 = 3"),
    ("%0 = aten.select.int(%x) {dim = 0, index = 9} : tensor<6xf32> <>\n%0 : tensor<6xf32>", "torch rejects it"),
    ('%0 = aten.clone(%x) {memory_format = "a"} : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>', "'a' is not a"),
    ('%0 = aten.gelu(%x) {approximate = "no"} : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>', "torch rejects it"),
]


@pytest.mark.parametrize(("body", "message"), UNTRUE, ids=[body.partition("\n")[0] for body, _ in UNTRUE])
def test_what_the_ir_says_of_results_must_be_what_torch_gives(body: str, message: str):
    with pytest.raises(SpmdirError, match=message) as caught:
        lower_to_fx(program(body))
    assert str(caught.value.location) == "<text>:3:1"


def test_by_products_may_be_those_of_another_device():
    stats = "tensor<4x1xf32> <>"
    text = "%0, %1, %2 = aten.native_layer_norm(%x, none, none) {normalized_shape = [6], eps = 1.0e-05}"
    graph = lower(f"{text} : tensor<4x6xbf16> <>, {stats}, {stats}\n%0 : tensor<4x6xbf16>", "%x: tensor<4x6xbf16>")
    x = torch.arange(24, dtype=torch.bfloat16).view(4, 6)
    (found,) = graph(x)
    assert torch.equal(found, torch.nn.functional.layer_norm(x, [6]))


def test_a_shard_whose_shape_is_another_is_rejected():
    text = """
        spmd.mesh @mesh <a = 2>
        func.func @f(%x: tensor<2x6xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}) -> tensor<4x3xf32>
            attributes {spmd.stage = "local"} {
          %0 = aten.view(%x) {size = [3, 4]} : tensor<4x3xf32> <a: S(0)>
          return %0 : tensor<4x3xf32>
        }
    """
    module = parse(text)
    trust(ir.main_function(module))  # as a wrong rule would have it
    with pytest.raises(
        UnsupportedError,
        match=r"result 0 has type .*; torch returns tensor<3x4xf32> on this rank; expected equal types",
    ):
        lower_to_fx(module)


def test_a_program_that_can_be_run_can_be_compiled_without_graph_breaks():
    program = lower("%0 = aten.relu(%x) : tensor<4x6xf32> <>\n%0 : tensor<4x6xf32>")
    x = torch.randn(4, 6)
    assert torch.equal(torch.compile(program, backend="eager", fullgraph=True)(x)[0], x.relu())


def test_equal_collectives_are_the_same_calls_on_their_own_operands():
    sharded = "{spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}"
    text = f"""
spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<3x5xf32> {sharded}, %y: tensor<3x5xf32> {sharded}) -> (tensor<3x5xf32>, tensor<3x5xf32>) {{
  %0 = spmd.all_gather %x on [a] dim 1 : tensor<3x5xf32> <>
  %1 = spmd.all_gather %y on [a] dim 1 : tensor<3x5xf32> <>
  return %0, %1 : tensor<3x5xf32>, tensor<3x5xf32>
}}
"""
    module, tensors = parse(text), [torch.randn(3, 5), torch.randn(3, 5)]
    for rank in range(2):
        targets = [node.target for node in calls(lower_to_fx(module, rank))]
        assert targets[: len(targets) // 2] == targets[len(targets) // 2 :]
    assert all(map(torch.equal, simulate(module, tensors), tensors))
