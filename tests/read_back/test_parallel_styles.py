"""Rank programs of DDP, FSDP, and of DTensor's tensor parallelism equal the program of one device."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import spmdir
from tests.read_back.rank_graphs import (
    all_gather,
    all_reduce,
    assert_equals_one_device,
    import_function,
    random_inputs,
    reduce_scatter,
)

STEP = random_inputs({"x": (4, 6, 8), "t": (4, 6, 8), "w1": (8, 6), "w2": (6, 8)})
BATCH = {"x": "dp: S(0)", "t": "dp: S(0)"}


def step(x, t, w1, w2):
    """Return the loss of a model and its gradients."""
    w1, w2 = w1.detach().requires_grad_(), w2.detach().requires_grad_()
    loss = (torch.relu(x @ w1) @ w2 - t).square().mean()
    return loss.detach(), *torch.autograd.grad(loss, [w1, w2])


def test_averaged_gradients_of_batches():
    def local(*args):
        return tuple(all_reduce(value, "dp", "avg") for value in step(*args))

    assert_equals_one_device(import_function(local, STEP, BATCH), step, STEP)


def test_gathered_weights_and_scattered_gradients():
    def local(x, t, w1, w2):
        loss, g1, g2 = step(x, t, all_gather(w1, axes="dp"), all_gather(w2, axes="dp"))
        return all_reduce(loss, "dp", "avg"), *(reduce_scatter(g, axes="dp", op="avg") for g in (g1, g2))

    shardings = {**BATCH, "w1": "dp: S(0)", "w2": "dp: S(0)"}
    assert_equals_one_device(import_function(local, STEP, shardings), step, STEP)


def test_weights_and_gradients_of_a_layer_in_one_message():
    def local(x, t, w1, w2):
        sizes = [w1.numel(), w2.numel()]
        flat = all_gather(torch.cat([w1.reshape(-1), w2.reshape(-1)]), axes="dp").view(2, -1)
        first, second = flat.split(sizes, 1)
        loss, g1, g2 = step(x, t, first.reshape(8, 6), second.reshape(6, 8))
        flat = torch.cat([g1.view(2, -1), g2.view(2, -1)], 1).reshape(-1)
        first, second = reduce_scatter(flat, axes="dp", op="avg").split(sizes)
        return all_reduce(loss, "dp", "avg"), first.view(4, 6), second.view(3, 8)

    shardings = {**BATCH, "w1": "dp: S(0)", "w2": "dp: S(0)"}
    module = import_function(local, STEP, shardings)
    assert_equals_one_device(module, step, STEP)
    assert spmdir.print_ir(module).count("spmd.all_gather") == 2


def attention(heads):
    def forward(x, wq, wk, wv, wo):
        batch, sequence, _ = x.shape
        q, k, v = ((x @ w).view(batch, sequence, heads, -1).transpose(1, 2) for w in (wq, wk, wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(batch, sequence, -1) @ wo

    return forward


def test_attention_with_sharded_heads():
    inputs = random_inputs({"x": (4, 6, 8), "wq": (8, 16), "wk": (8, 16), "wv": (8, 16), "wo": (16, 8)})
    shardings = {"x": "dp: S(0)", **dict.fromkeys(["wq", "wk", "wv"], "tp: S(1)"), "wo": "tp: S(0)"}

    def local(x, wq, wk, wv, wo):
        return all_reduce(attention(2)(x, wq, wk, wv, wo))

    assert_equals_one_device(import_function(local, inputs, shardings), attention(4), inputs)


MLP = random_inputs({"x": (4, 6, 8), "w1": (8, 6), "w2": (6, 8), "b": (8,)})
COLUMN_ROW = {"x": "dp: S(0)", "w1": "tp: S(1)", "w2": "tp: S(0)"}


def mlp(x, w1, w2, b):
    return torch.relu(x @ w1) @ w2 + b


def test_a_bias_divided_by_the_ranks_is_a_summand():
    def local(x, w1, w2, b):
        return all_reduce(torch.relu(x @ w1) @ w2 + b / 2)

    assert_equals_one_device(import_function(local, MLP, COLUMN_ROW), mlp, MLP)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_takes_its_own_part_of_a_complete_tensor(rank):
    part = rank % 2

    def local(x, w1, w2, b):
        return all_gather(mlp(x.chunk(2, 1)[part], w1, w2, b), 1)

    assert_equals_one_device(import_function(local, MLP, {"x": "dp: S(0)"}, rank=rank), mlp, MLP)


def test_a_local_constant_is_a_shard_of_a_larger_one():
    def local(x, w1, w2, b):
        mask = torch.full((x.shape[0], 1, 1), 0.5, dtype=torch.float64)
        return all_reduce((mask * torch.relu(x @ w1)) @ w2) + b

    assert_equals_one_device(
        import_function(local, MLP, COLUMN_ROW), lambda x, w1, w2, b: 0.5 * torch.relu(x @ w1) @ w2 + b, MLP
    )


class Block(nn.Module):
    """A transformer block."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.q, self.k, self.v = (nn.Linear(8, 16, bias=False) for _ in range(3))
        self.o, self.up, self.down = nn.Linear(16, 8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.mlp = nn.Sequential(self.up, nn.ReLU(), self.down)

    def forward(self, x):
        h = self.norm1(x)
        batch, sequence, _ = h.shape
        q, k, v = (layer(h).view(batch, sequence, -1, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, sequence, -1))
        return x + self.mlp(self.norm2(x))


@pytest.fixture
def device_mesh():
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


COLUMN, ROW = ColwiseParallel, RowwiseParallel
TENSOR_PARALLEL = {"q": COLUMN(), "k": COLUMN(), "v": COLUMN(), "o": ROW(), "up": COLUMN(), "down": ROW()}
SEQUENCE_PARALLEL = {
    "norm1": SequenceParallel(),
    "norm2": SequenceParallel(),
    **{name: COLUMN(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")},
    **{name: ROW(output_layouts=Shard(1)) for name in ("o", "down")},
}


@pytest.mark.parametrize(
    ("plan", "sharding"),
    [(TENSOR_PARALLEL, "dp: S(0)"), (SEQUENCE_PARALLEL, "dp: S(0), tp: S(1)")],
    ids=["tensor", "sequence"],
)
def test_a_module_parallelized_by_dtensor_equals_one_device(device_mesh, plan, sharding):
    single = Block().double()
    model = parallelize_module(copy.deepcopy(single), device_mesh["tp"], plan)
    placed = dict(model.named_parameters())
    local = {name: p.to_local().detach() if isinstance(p, DTensor) else p.detach() for name, p in placed.items()}

    def forward(parameters, x):
        wrapped = {
            name: DTensor.from_local(value, placed[name].device_mesh, placed[name].placements, run_check=False)
            if isinstance(placed[name], DTensor)
            else value
            for name, value in parameters.items()
        }
        return torch.func.functional_call(model, wrapped, (x,))

    x = torch.zeros(2, 3 if "tp" in sharding else 6, 8, dtype=torch.float64)
    graph = make_fx(forward, tracing_mode="fake")(local, x)
    shardings = {f"input:{len(local)}": sharding}
    for index, parameter in enumerate(placed.values()):
        if isinstance(parameter, DTensor) and parameter.placements != (Replicate(),):
            shardings[f"input:{index}"] = f"tp: S({parameter.placements[0].dim})"  # type: ignore  # a shard
    module = spmdir.import_ranks(graph, device_mesh, shardings)
    reference = make_fx(
        lambda parameters, x: torch.func.functional_call(single, parameters, (x,)), tracing_mode="fake"
    )({name: value.detach() for name, value in single.named_parameters()}, torch.zeros(4, 6, 8, dtype=torch.float64))
    comparison = spmdir.check_ranks(module, reference)
    assert comparison.is_equal, comparison
