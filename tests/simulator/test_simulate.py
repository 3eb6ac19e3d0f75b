"""Global tensors in, global tensors out; what does not fit is refused."""

import pytest
import torch
from torch import distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx

from spmdir.analysis.local_programs.type_check_cache import trust
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.dialects import ir
from spmdir.dialects.ir import parse
from spmdir.importer.importer import import_fx
from spmdir.lowering.emit import lower_to_fx
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.simulator.distribution import collect, distribute
from spmdir.simulator.simulate import run_single, simulate
from tests.lowering.collective_programs import programs

MLP = """
spmd.mesh @mesh <dp = 2, tp = 3>
func.func @mlp(%x: tensor<7x10xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
               %w1: tensor<10x12xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>,
                                       spmd.kind = "parameter", spmd.name = "up.weight"},
               %w2: tensor<12x11xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>,
                                       spmd.kind = "parameter", spmd.name = "down.weight"}) -> tensor<7x11xf64> {
  %0 = aten.mm(%x, %w1) : tensor<7x12xf64> <dp: S(0), tp: S(1)>
  %1 = aten.relu(%0) : tensor<7x12xf64> <dp: S(0), tp: S(1)>
  %2 = aten.mm(%1, %w2) : tensor<7x11xf64> <dp: S(0), tp: P(sum)>
  %3 = spmd.all_reduce %2 on [tp] op sum : tensor<7x11xf64> <dp: S(0)>
  return %3 : tensor<7x11xf64>
}
"""


def mlp_tensors():
    generator = torch.Generator().manual_seed(0)
    x, up, down = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((7, 10), (10, 12), (12, 11))
    )
    return x, {"up.weight": up, "down.weight": down}, (x @ up).relu() @ down


TRACED = {
    "the gradient of a convolution's bias": (
        lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, [4], [1], [1], [1], False, [0], 1, [True] * 3),
        ((2, 4, 8), (2, 6, 8), (4, 6, 3)),
        "dp: S(1)",
    ),
    "a complex number times a real tensor": (lambda x: ((x * 1j + 2).sum(0), x.mean() * 2j), ((4, 6),), "dp: S(0)"),
}
"""Name → a function, the shapes of its inputs, and the sharding of the first."""


@pytest.mark.parametrize("case", TRACED)
def test_a_traced_function_computes_what_it_does_in_eager(case: str):
    function, shapes, sharding = TRACED[case]
    inputs = [torch.rand(shape, dtype=torch.float64) for shape in shapes]
    module = import_fx(make_fx(function)(*inputs), Mesh({"dp": 2}), {"input:0": sharding})
    for found, expected in zip(simulate(module, inputs), function(*inputs), strict=True):
        assert torch.allclose(found, expected, rtol=1e-12)


def test_a_result_that_nothing_uses_may_have_another_shape_than_traced():
    def function(weight, indices, offsets, scales):
        # torch's kernel gives an empty offset2bag here, and its fake kernel one entry for each index.
        return torch.nn.functional.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=scales)

    inputs = [torch.randn(10, 5).bfloat16(), torch.tensor([1, 5, 4, 5, 9]), torch.tensor([0, 0, 3])]
    inputs.append(torch.randn(5).bfloat16())
    module = import_fx(make_fx(function)(*inputs), Mesh({"a": 2}), {"input:0": "a: S(1)"})
    assert torch.equal(simulate(module, inputs)[0], function(*inputs))


@pytest.mark.parametrize("axes", [{"a": 1, "b": 4}, {"b": 4, "a": 1}])
def test_an_axis_of_one_rank_rejects_no_program(axes: dict[str, int]):
    def function(x, y, image, grid):
        flow = torch.nn.functional.grid_sample(image, grid, align_corners=False)
        return torch.triu(x, -1) + 0, y.index_add(0, torch.tensor([0, 2, 2, 6]), x[:4]), flow

    inputs = [torch.rand(shape, dtype=torch.float64) for shape in ((10, 5), (7, 5), (1, 2, 6, 5), (1, 6, 5, 2))]
    shardings = {"input:0": "b: S(1)", "input:1": "a: S(0), b: S(0)", "input:2": "a: S(2), b: S(1)"}
    module = import_fx(make_fx(function)(*inputs), Mesh(axes), shardings)
    pipeline = Pipeline("propagate,insert-reshard,lower-reshard,verify-spmd", topology="flat")
    found = simulate(run_passes(module, pipeline), inputs)
    torch.testing.assert_close(found, list(function(*inputs)), rtol=1e-12, atol=1e-12)


def test_a_sharded_program_computes_what_the_whole_one_does():
    x, state, expected = mlp_tensors()
    torch.testing.assert_close(simulate(parse(MLP), [x], state), [expected])
    torch.testing.assert_close(run_single(parse(MLP), [x], state), [expected])


@pytest.mark.parametrize("passes", ["insert-reshard", "insert-reshard,lower-reshard", "localize"])
def test_a_module_at_any_stage_is_finished(passes):
    x, state, expected = mlp_tensors()
    torch.testing.assert_close(simulate(run_passes(parse(MLP), passes), [x], state), [expected])


def test_another_precision_may_be_asked_for():
    x, state, expected = mlp_tensors()
    (y,) = simulate(parse(MLP), [x.float()], {name: tensor.float() for name, tensor in state.items()})
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, expected.float())


def test_inputs_may_be_given_by_name():
    x, state, expected = mlp_tensors()
    torch.testing.assert_close(simulate(parse(MLP), {"x": x}, state), [expected])


@pytest.mark.parametrize(
    ("inputs", "state", "message"),
    [
        ([], {}, "found 0 inputs; expected 1: x"),
        ({"y": 0}, {}, "no 'x' in input; expected a value for each name of the program: input has y"),
        ({"x": 0, "y": 0}, {}, "'x' is int; expected a tensor of shape [7, 10]"),
        ([torch.zeros(7, 11)], {}, "'x' has shape [7, 11]; expected the global shape [7, 10]"),
        ([torch.zeros(7, 10).int()], {}, "'x' has dtype torch.int32; expected torch.float64"),
        ([torch.zeros(7, 10)], {}, "of the program: state_dict has nothing"),
        ([torch.zeros(7, 10)], {"up.weights": 0}, "state_dict has up.weights; did you mean"),
    ],
)
def test_inputs_that_do_not_fit_are_rejected(inputs, state, message):
    for run in (simulate, run_single):
        with pytest.raises(SpmdirError) as caught:
            run(parse(MLP), inputs, state)
        assert message in str(caught.value)


def test_an_input_that_the_program_lacks_is_rejected():
    x, state, _ = mlp_tensors()
    with pytest.raises(SpmdirError, match="the program has no input 'xs'; expected x; did you mean 'x'"):
        simulate(parse(MLP), {"x": x, "xs": x}, state)


def test_a_localized_module_is_no_program_of_one_device():
    x, state, _ = mlp_tensors()
    with pytest.raises(UnsupportedError, match="pass the module before localize"):
        run_single(run_passes(parse(MLP), "localize"), [x], state)


def test_outputs_are_flat_with_literals_and_mutations_last():
    text = """
    spmd.mesh @mesh <a = 2>
    func.func @main(%x: tensor<4xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>})
        -> (tensor<4xf64>, tensor<4xf64>, tensor<4xf64> {spmd.kind = "mutation", spmd.name = "x"})
        attributes {spmd.outputs = #spmd.arguments<{outputs = ["#1", none, 3, "#0"]}>} {
      %0 = aten.neg(%x) : tensor<4xf64> <a: S(0)>
      %1 = aten.relu(%x) : tensor<4xf64> <a: S(0)>
      %2 = aten.abs(%x) : tensor<4xf64> <a: S(0)>
      return %0, %1, %2 : tensor<4xf64>, tensor<4xf64>, tensor<4xf64>
    }"""
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0], dtype=torch.float64)
    for run in (simulate, run_single):
        relu, nothing, three, minus, absolute = run(parse(text), [x])
        assert (nothing, three) == (None, 3)
        assert relu.tolist() == [0, 2, 0, 4]
        assert minus.tolist() == [1, -2, 3, -4]
        assert absolute.tolist() == [1, 2, 3, 4]


def test_ranks_that_hold_different_copies_of_a_result_are_found():
    text = """
    spmd.mesh @mesh <a = 2>
    func.func @main(%x: tensor<2xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}) -> tensor<2xf64>
        attributes {spmd.stage = "local"} {
      %0 = aten.neg(%x) : tensor<2xf64> <>
      return %0 : tensor<2xf64>
    }"""
    module = parse(text)
    trust(ir.main_function(module))  # as a wrong rule would have it
    with pytest.raises(SpmdirError, match="result 0: ranks disagree along axis 'a'") as caught:
        simulate(module, [torch.arange(4.0, dtype=torch.float64)])
    assert str(caught.value.location) == "<text>:5:7"


def test_random_ops_give_what_one_device_gives():
    text = """
    spmd.mesh @mesh <a = 2>
    func.func @main(%x: tensor<6x4xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}) -> tensor<6x4xf64> {
      %0 = aten.rand_like(%x) : tensor<6x4xf64>
      %1 = aten.add.Tensor(%x, %0) : tensor<6x4xf64>
      return %1 : tensor<6x4xf64>
    }"""
    x = torch.zeros(6, 4, dtype=torch.float64)
    assert torch.equal(simulate(parse(text), [x], seed=3)[0], run_single(parse(text), [x], seed=3)[0])
    assert not torch.equal(simulate(parse(text), [x], seed=3)[0], simulate(parse(text), [x], seed=4)[0])


@pytest.fixture
def pretended_ranks():
    """A process group of six ranks of which only one is there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=6, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_torch_simulates_the_same_graph_alike(pretended_ranks):
    from torch.distributed import _local_tensor

    mesh = Mesh({"a": 2, "b": 3})
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (2, 3), mesh_dim_names=("a", "b"))
    x = torch.arange(72, dtype=torch.float64).reshape(6, 12)
    # One graph for all ranks: no op of these looks at the rank, and shards are even.
    for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all"):
        for program in [p for p in programs(mesh, kind, (6, 12)) if "a" in p.clauses or not p.source.partial][::4]:
            shards = distribute(x, program.source, mesh, torch.ones_like)
            graph = lower_to_fx(program.parse(), device_mesh=device_mesh)
            with _local_tensor.LocalTensorMode(6):
                (result,) = graph(_local_tensor.LocalTensor(dict(enumerate(shards))))
            locals_ = [result._local_tensors[rank] for rank in range(6)]
            torch.testing.assert_close(collect(locals_, program.target, mesh, x.shape), x, msg=program.text)


def test_groups_of_several_axes_are_those_of_the_flattened_mesh(pretended_ranks):
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (2, 3), mesh_dim_names=("a", "b"))
    mesh = Mesh({"a": 2, "b": 3})
    both = next(p for p in programs(mesh, "all_reduce", (6, 12)) if p.clauses.startswith("on [b, a]"))
    name = next(
        node.args[-1]
        for node in lower_to_fx(both.parse(), device_mesh=device_mesh).graph.nodes
        if "all_reduce" in str(node.target)
    )
    assert name == device_mesh._flatten().get_group().group_name
    assert parse_sharding("") == both.target


@pytest.mark.cuda
def test_programs_run_where_their_inputs_are():
    text = """
    spmd.mesh @mesh <a = 3>
    func.func @main(%x: tensor<7x4xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}) -> tensor<7x4xf64> {
      %0 = aten.rand_like(%x) : tensor<7x4xf64>
      %1 = aten.full() {size = [7, 4], fill_value = 2.0, dtype = f64} : tensor<7x4xf64>
      %2 = spmd.constant value "000000000000f03f" : tensor<f64>
      %3 = aten.add.Tensor(%0, %1) : tensor<7x4xf64>
      %4 = aten.mul.Tensor(%3, %2) : tensor<7x4xf64>
      %5 = aten.add.Tensor(%4, %x) : tensor<7x4xf64>
      return %5 : tensor<7x4xf64>
    }"""
    x = torch.randn(7, 4, dtype=torch.float64, device="cuda")
    (y,) = simulate(parse(text), [x])
    assert y.device == x.device
    torch.testing.assert_close(y, run_single(parse(text), [x])[0])
