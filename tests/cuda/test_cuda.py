"""What needs a GPU; the same code on the CPU, smaller, wherever there is none. `docs/cuda.md` says what it is for."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.pipeline import STANDARD
from spmdir.simulator.distribution import local_tensor
from spmdir.sweep.sweep import SweepRequest, sweep
from spmdir.sweep.workload import ConfiguredModel

ROOT = Path(__file__).parents[2]
MESH = Mesh({"dp": 2, "tp": 4})
BOTH_DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


@attrs.frozen
class Sizes:
    """How large the step is, and by what it is compiled."""

    batch: int
    width: int
    backend: str
    calls: int


SIZES = {"cpu": Sizes(8, 16, "aot_eager", 1), "cuda": Sizes(8192, 4096, "inductor", 20)}
"""On CUDA matrix products dwarf the launches, so that a rank's share of the time can be seen where it is printed."""


class MLP(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def mean_square(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


SHARDINGS = {
    "arg*": "dp: S(0)",
    "up.*": "tp: S(0)",
    "down.weight": "tp: S(1)",
    "down.bias": "",
}


def traced_step(device: str) -> tuple[fx.GraphModule, list[Any]]:
    """A training step on `device` and its flat arguments."""
    sizes = SIZES[device]
    torch.manual_seed(0)
    with torch.device(device):
        x, y = torch.randn(sizes.batch, sizes.width), torch.randn(sizes.batch, sizes.width)
        model = MLP(sizes.width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step, state = spmdir.training_step(model, mean_square, optimizer)
    graph = make_fx(step, tracing_mode="fake")(state, x, y)
    return graph, pytree.tree_leaves((state, x, y))


def of_first_rank(device: str, passes: str) -> tuple[ModuleOp, fx.GraphModule, list[Tensor]]:
    """The step of rank 0 after `passes`, its graph, and what it is called with."""
    graph, tensors = traced_step(device)
    module = spmdir.run_passes(spmdir.import_fx(graph, MESH, SHARDINGS), passes)
    device_mesh = init_device_mesh(device, tuple(MESH.sizes.values()), mesh_dim_names=MESH.axis_names)
    program = spmdir.lower_to_fx(module, device_mesh=device_mesh)
    arguments = ir.main_function(module).args
    pieces = [local_tensor(t, sharding_of(a), MESH, 0).clone() for t, a in zip(tensors, arguments, strict=True)]
    return module, program, pieces


@pytest.fixture
def alone_of_eight() -> Iterator[None]:
    """This process as rank 0 of eight, whose collectives reach nobody.

    Before torch 2.13, some of them leave their result as it was allocated: NaN, if algorithms are deterministic.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=MESH.world_size)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    dist.destroy_process_group()


def seconds(call: Callable[[], Any], device: str, calls: int) -> float:
    """The mean time of a call, after one that warms up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - start) / calls


@BOTH_DEVICES
def test_a_ranks_program_compiles_and_is_what_it_is_uncompiled(device, alone_of_eight, capsys):
    sizes = SIZES[device]
    graph, tensors = traced_step(device)
    _, program, pieces = of_first_rank(device, "propagate,insert-reshard,lower-reshard,fuse-collectives")
    compiled = torch.compile(program, backend=sizes.backend, fullgraph=True)
    all_expected = program(*pieces)
    assert any(expected.isfinite().all() for expected in all_expected)
    for found, expected in zip(compiled(*pieces), all_expected, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True)

    uncompiled = fx.GraphModule(graph, flat_graph(graph))
    whole = torch.compile(uncompiled, backend=sizes.backend, fullgraph=True)
    of_one = seconds(lambda: whole(*tensors), device, sizes.calls)
    of_rank = seconds(lambda: compiled(*pieces), device, sizes.calls)
    if device == "cuda":
        with capsys.disabled():
            print(f"\na rank's step {of_rank * 1e3:.2f} ms, the whole step {of_one * 1e3:.2f} ms")
    # Time depends on the machine, work does not. Where a product is small it is cheaper done whole than sent for.
    assert flops(lambda: program(*pieces)) < flops(lambda: uncompiled(*tensors)) / 2


def flops(call: Callable[[], Any]) -> int:
    """The floating-point operations of the products that a call does."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def flat_graph(traced: fx.GraphModule) -> fx.Graph:
    """The graph as a function of its flat arguments."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(traced.graph, {}))
    return graph


@BOTH_DEVICES
@torch.no_grad()
def test_a_schedule_is_run_as_it_is_written(device, alone_of_eight):
    module, program, pieces = of_first_rank(device, f"{STANDARD},schedule")
    kinds = {"aten.mm": "product", "aten.addmm": "product", WaitOp.name: "wait"}
    written = [
        kinds.get(op.name, "start")
        for op in ir.main_function(module).body.block.ops
        if op.name in kinds or (isinstance(op, Collective) and op.IS_START)
    ]
    assert {"start", "wait", "product"} == set(written)
    run = spmdir.compile_program(program) if device == "cuda" else program
    run(*pieces)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        run(*pieces)
    names = [event.name for event in sorted(profiled.events(), key=lambda event: event.time_range.start)]
    kinds = {"aten::mm": "product", "aten::addmm": "product", "_c10d_functional::wait_tensor": "wait"}
    found = [kinds.get(name, "start") for name in names if name in kinds or name.startswith("_c10d_functional::")]
    assert found == written


@pytest.mark.cuda
def test_a_world_of_one_over_nccl_runs_compiled_as_uncompiled(tmp_path):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model, x = MLP(16), torch.randn(8, 16)
        y = x.flip(0)
        found = []
        for compile in (True, False):
            step, state = spmdir.training_step(model, mean_square, torch.optim.SGD(model.parameters(), lr=0.1))
            parallel = spmdir.parallelize(
                step, Mesh({"dp": 1}), {"arg*": "dp: S(0)"}, (x, y), state=state, compile=compile
            )
            found.append([parallel(x, y) for _ in range(3)])
        assert found[0][0].device.type == "cuda"
        torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    finally:
        dist.destroy_process_group()


@pytest.mark.cuda
@torch.no_grad()
def test_the_modelled_peak_is_that_of_the_allocator(alone_of_eight, capsys):
    module, program, pieces = of_first_rank("cuda", f"{STANDARD},schedule")
    program(*pieces)  # libraries take their workspaces in the first run
    held = sum(tensor.nbytes for tensor in pieces)
    others = torch.cuda.memory_allocated() - held
    torch.cuda.reset_peak_memory_stats()
    program(*pieces)
    measured, modelled = torch.cuda.max_memory_allocated() - others, spmdir.report.memory_report(module).peak_bytes
    with capsys.disabled():
        print(f"\na rank's peak is {modelled / 1e9:.3f} GB modelled, {measured / 1e9:.3f} GB allocated")
    assert measured == pytest.approx(modelled, rel=0.05)


@BOTH_DEVICES
@torch.no_grad()
def test_measured_time_of_a_traced_step_belongs_to_its_ops(device, alone_of_eight, tmp_path):
    module, program, pieces = of_first_rank(device, f"{STANDARD},schedule")
    program(*pieces)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiled:
        program(*pieces)
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(path))
    measured = spmdir.report.cost_table(module, measured=[str(path)]).measured
    assert measured is not None and measured.missing == ()
    assert measured.attributed >= 0.95


@BOTH_DEVICES
@torch.no_grad()
def test_eight_ranks_simulated_on_the_device_compute_the_step(device):
    graph, tensors = traced_step(device)
    module = spmdir.import_fx(graph, MESH, SHARDINGS)
    found = spmdir.simulate(module, tensors)
    expected = pytree.tree_leaves(fx.GraphModule(graph, flat_graph(graph))(*tensors))
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == device
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
def test_eight_ranks_of_the_demo_simulated_on_cuda_compute_its_logits():
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import demo
    finally:
        sys.path.pop(0)
    model, ids = demo.small_llama()
    program = torch.export.export(model, (ids,))
    module = spmdir.import_fx(program, demo.MESH, demo.SHARDINGS)
    state = {name: tensor.detach().cuda() for name, tensor in program.state_dict.items()}
    (found,) = spmdir.simulate(module, [ids.cuda()], state)
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), model(ids).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
def test_the_training_example_runs_in_one_process_with_nccl():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    script = str(ROOT / "examples" / "train_torchrun.py")
    done = subprocess.run([*command, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "on cuda" in done.stdout


@pytest.mark.cuda
def test_processes_price_a_model_after_this_one_has_used_the_device(tmp_path):
    torch.ones(1, device="cuda", requires_grad=True).sum().backward()
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 128,'
        ' "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}'
    )
    result = sweep(SweepRequest.of(ConfiguredModel.read(str(config)), 4), ("ddp", "fsdp"), workers=2)
    assert {setting.candidate.recipe for setting in result.settings} == {"ddp", "fsdp"}


COPIES = """
spmd.mesh @mesh <dp = 2>
func.func @main(%x: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  %e = aten.sin(%x) : tensor<512x512xf32> <>
  %0 = spmd.offload_start %e : !spmd.pending<!spmd.host<tensor<512x512xf32>>> <>
  %y = aten.mm(%x, %x) : tensor<512x512xf32> <>
  %h = spmd.wait %0 : !spmd.host<tensor<512x512xf32>> <>
  %1 = spmd.reload_start %h : !spmd.pending<tensor<512x512xf32>> <>
  %z = aten.cos(%y) : tensor<512x512xf32> <>
  %b = spmd.wait %1 : tensor<512x512xf32> <>
  %r = aten.add.Tensor(%z, %b) : tensor<512x512xf32> <>
  return %r : tensor<512x512xf32>
}
"""


@BOTH_DEVICES
def test_a_value_comes_back_from_the_host_as_it_was(device: str) -> None:
    x = torch.randn(512, 512, device=device)
    program = spmdir.lower_to_fx(spmdir.parse(COPIES))
    for _ in range(3):  # so that memory of a run before is used again
        (found,) = program(x)
        torch.testing.assert_close(found, torch.cos(x @ x) + torch.sin(x))
    held = torch.ops.spmdir.offload(x)
    assert held.device.type == "cpu" and held.is_pinned() == (device == "cuda")
