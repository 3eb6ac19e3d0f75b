"""What each rank does in `test_dynamic_shapes`."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.export import Dim

import spmdir
from spmdir.core.mesh import Mesh
from tests.models.zoo import optimizer_of
from tests.runtime.parallelize_cases import error_of

PAIRS = [(4, 6), (3, 7), (5, 2)]
"""Batch and sequence of each call: as traced, and such that nothing divides."""


class Model(nn.Module):
    """Flattens batch and sequence, and looks at positions."""

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(24, 8), nn.Linear(8, 16), nn.Linear(16, 24)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        hidden = self.embed(ids) * torch.arange(1, length + 1)[:, None] / batch
        return self.down(self.up(hidden.view(batch * length, 8)).relu()).view(batch, length, 24)


def loss_of(model: nn.Module, ids: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), target.flatten())


def inputs(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Token ids and targets; equal on all ranks."""
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids, target = (torch.randint(24, (batch, length), generator=generator) for _ in range(2))
    return ids, target


def modules(rank: int, mesh: Mesh, model: nn.Module, plan: Any, open_sizes: Any) -> list[list[Any]]:
    """Losses and gradients at all sizes, of a sharded module that begins as the first rank's, and of that one alone."""
    own = copy.deepcopy(model)
    with torch.no_grad():
        own.up.weight.add_(rank)  # type: ignore  # a parameter
    ids, _ = inputs(*PAIRS[0])
    sharded = spmdir.shard_module(own, mesh, plan, (ids,), dynamic_shapes={"ids": open_sizes}, sync_state=True)
    found = []
    for each in (sharded, model):
        found.append([])
        for pair in PAIRS:
            loss = loss_of(each, *inputs(*pair))
            loss.backward()
            found[-1].append([loss.detach(), *(full(parameter.grad) for parameter in each.parameters())])
            each.zero_grad()
    return found


class Tokens(Model):
    """A model that does not compute with the size of its batch."""

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids) * torch.arange(1, ids.shape[1] + 1)[:, None]
        return self.down(self.up(hidden).relu())


class WithLoss(nn.Module):
    """A model that computes its loss, which ignores a class, and returns its outputs too."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(ids)
        return output, nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=3)


OWN = [[(2, 6), (2, 6)], [(2, 6), (1, 6)], [(3, 4), (2, 7)], [(1, 2), (1, 5)]]
"""Batch and sequence of each call on each of two ranks."""


def own_batches(rank: int, mesh: Mesh, open_sizes: Any) -> list[list[Tensor]]:
    """Outputs, losses and gradients where each rank has a batch of its own sizes, and those of FSDP2."""
    from torch.distributed.fsdp import fully_shard

    whole, open_ = WithLoss(Tokens().double()), {"ids": open_sizes, "target": open_sizes}
    native = fully_shard(copy.deepcopy(whole), mesh=dist.init_device_mesh("cpu", (2,)))
    options = {"local_inputs": True, "dynamic_shapes": open_, "out_shardings": ["dp: S(0)", None]}
    sharded = spmdir.shard_module(whole, mesh, "fsdp", inputs(4, 6), **options)
    found: list[list[Tensor]] = []
    for each in (sharded, native):
        found.append([])
        for pairs in OWN:
            output, loss = each(*inputs(*pairs[rank]))
            (loss + output.square().mean()).backward()
            mean = loss.detach().clone()
            if each is native:
                dist.all_reduce(mean)
                mean /= 2
            found[-1] += [output.detach(), mean, *(full(parameter.grad) for parameter in each.parameters())]
            each.zero_grad()
    return found


class Losses(nn.Module):
    """Losses whose divisors are data, statistics of batches, and a loss that multiplies two means."""

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(24, 8), nn.Linear(8, 16), nn.Linear(16, 24)
        self.norm, self.scale = nn.BatchNorm1d(16), nn.Parameter(torch.ones(4))

    def forward(self, ids: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.norm(self.up(self.embed(ids)).transpose(1, 2)).transpose(1, 2)
        output = self.down(hidden.relu())
        each = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none").view_as(ids)
        seen = (ids % 3 != 1).double()
        masked = (each * seen).sum() / seen.sum()
        by_row = ((each * seen).sum(1) / seen.sum(1).clamp(min=1)).mean() * self.scale.sum()
        chosen = (output.argmax(-1).flatten()[:, None] == torch.arange(24)).double().mean(0)
        balance = (output.softmax(-1).flatten(0, 1).mean(0) * chosen).sum()
        return masked + by_row + balance, each.sum(), output.std()


def means(rank: int, mesh: Mesh, open_sizes: Any) -> list[list[Tensor]]:
    """Values of ranks with sizes of their own and their gradients, and the means of what one device gives for copies of
    the batch of each."""
    torch.manual_seed(1)
    alone = Losses().double()
    options = {"local_inputs": True, "dynamic_shapes": {"ids": open_sizes, "target": open_sizes}}
    sharded = spmdir.shard_module(copy.deepcopy(alone), mesh, "fsdp", inputs(4, 6), **options)
    found: list[list[Tensor]] = [[], []]
    for pairs in OWN:
        values = sharded(*inputs(*pairs[rank]))
        torch.stack(values).sum().backward()
        kept = [full(buffer).clone() for buffer in sharded.buffers() if buffer.is_floating_point()]
        found[0] += [each.detach() for each in values] + [full(each.grad) for each in sharded.parameters()] + kept
        parts = [_of_copies(alone, pair) for pair in pairs]
        found[1] += [torch.stack(each).mean(0) for each in zip(*parts, strict=True)]
        state = {name: full(value) for name, value in sharded.state_dict().items()}
        alone.load_state_dict(state)
        sharded.zero_grad()
    return found


class Counting(nn.Module):
    """Counts rows in a buffer, and adds up their positions in another."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.up = nn.Linear(4, 4).double()
        self.register_buffer("seen", torch.zeros((), dtype=dtype))
        self.register_buffer("positions", torch.zeros((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.size(0)
        self.positions += torch.arange(x.size(0)).sum().to(self.positions.dtype)
        return self.up(x)


def counters(rank: int, mesh: Mesh) -> dict[str, Any]:
    """Buffers that sizes are added to, of a sharded module and of a step; what is said of buffers of integers."""
    x, rows = torch.randn(8, 4, dtype=torch.float64), {0: Dim("rows", min=2)}
    options = {"local_inputs": True, "dynamic_shapes": {"x": rows}, "out_shardings": ["dp: S(0)"]}
    floats, integers = (
        spmdir.shard_module(Counting(dtype), mesh, {"x": "dp: S(0)"}, (x,), **options)
        for dtype in (torch.float64, torch.int64)
    )
    model = Counting(torch.float64)
    optimizer = optimizer_of("sgd", model, lr=0.1)
    step, state = spmdir.training_step(model, lambda model, x: model(x).square().mean(), optimizer)
    options = {"state": state, "local_inputs": True, "dynamic_shapes": (rows,)}
    trained = spmdir.parallelize(step, mesh, {"arg*": "dp: S(0)"}, (x,), **options)
    for batch in (x[:4], x[:3] if rank else torch.cat([x[:4], x[:1]])):
        floats(batch)
        trained(batch)
    buffers = trained.gather_state()["buffers"]
    return {
        "module": [full(floats.seen), full(floats.positions)],
        "step": [buffers["seen"], buffers["positions"]],
        "integers": error_of(lambda: integers(x[:4])),
    }


def _of_copies(model: Losses, pair: tuple[int, int]) -> list[Tensor]:
    """Values, gradients and statistics of a batch and its copy."""
    own = copy.deepcopy(model)
    values = own(*(torch.cat([each, each]) for each in inputs(*pair)))
    torch.stack(values).sum().backward()
    kept = [buffer for buffer in own.buffers() if buffer.is_floating_point()]
    return [each.detach() for each in values] + [full(each.grad) for each in own.parameters()] + kept


def needed(rank: int, model: nn.Module, mesh: Mesh, open_sizes: Any) -> list[Any]:
    """A call with the same local sizes, and one with others, where whole outputs depend on them."""
    whole = WithLoss(copy.deepcopy(model))
    options = {"local_inputs": True, "dynamic_shapes": {"ids": open_sizes, "target": open_sizes}}
    sharded = spmdir.shard_module(whole, mesh, "fsdp", inputs(4, 6), **options)
    return [
        sharded(*inputs(3, 5))[0].shape,
        error_of(lambda: sharded(*inputs(3 + rank, 5))),
        error_of(lambda: sharded(*inputs(3, 17))),
    ]


class Branching(nn.Module):
    """Computes otherwise with one row and with none."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            x = x * torch.tensor([3.0], dtype=x.dtype)
        return self.down(self.up(x).relu()).sum() + (5.0 if x.shape[0] == 0 else 0.0)


ROWS = (4, 1, 3, 0, 1)


def special(mesh: Mesh) -> dict[str, Any]:
    """Values and gradients with one row and none, and those of one device; what is said of other sizes."""
    torch.manual_seed(2)
    model = Branching().double()
    inputs = [torch.randn(rows, 4, dtype=torch.float64) for rows in (*ROWS, 17)]
    sizes = {"x": {0: Dim("rows", max=16)}}
    sharded = spmdir.shard_module(copy.deepcopy(model), mesh, "fsdp", (inputs[0],), dynamic_shapes=sizes)
    found: list[list[Tensor]] = [[], []]
    for index, each in enumerate((sharded, model)):
        for x in inputs[:-1]:
            value = each(x)
            value.backward()
            found[index] += [value.detach(), *(full(parameter.grad) for parameter in each.parameters())]
            each.zero_grad()
    parallel = spmdir.parallelize(copy.deepcopy(model), mesh, "fsdp", (inputs[1],), dynamic_shapes=sizes)
    found[0] += [parallel(x) for x in inputs[:-1]]
    found[1] += [model(x).detach() for x in inputs[:-1]]
    step, state = spmdir.training_step(
        model, lambda model, x: model(x).square(), optimizer_of("sgd", model, lr=0.01), accumulate=2
    )
    trained = spmdir.parallelize(step, mesh, "fsdp", (inputs[0],), state=state, dynamic_shapes=({0: Dim("rows")},))
    for x in (inputs[0], inputs[0][:2], inputs[0]):
        found[0].append(trained(x))
        loss, state = step(state, x)
        found[1].append(loss)
    local = spmdir.shard_module(model, mesh, "fsdp", (inputs[0],), dynamic_shapes=sizes, local_inputs=True)
    return {
        "numbers": found,
        "programs": len(spmdir.report.rank_programs(sharded)),
        "errors": [error_of(functools.partial(each, inputs[-1])) for each in (sharded, parallel)],
        "local": error_of(lambda: local(inputs[3])),
    }


def largest(rank: int, model: nn.Module, mesh: Mesh) -> dict[str, Any]:
    """Calls of modules whose examples have the largest sizes, and the only ones."""
    found: dict[str, Any] = {"pairs": []}
    for low, batches, wrong in ((2, (4, 2), 1 + rank), (3, (4,), 1)):
        whole, open_ = WithLoss(copy.deepcopy(model)), {0: Dim("rows", min=low, max=4)}
        options = {"local_inputs": True, "dynamic_shapes": {"ids": open_, "target": open_}}
        sharded = spmdir.shard_module(copy.deepcopy(whole), mesh, "fsdp", inputs(4, 6), **options)
        for batch in batches:
            own = [each.chunk(2)[rank] for each in inputs(batch, 6)]
            found["pairs"].append((sharded(*own)[0].detach(), whole(*inputs(batch, 6))[0].detach()))
        found[f"at least {low}"] = error_of(lambda: sharded(*inputs(wrong, 6)))  # noqa: B023  # called at once
    return found


def full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def run(rank: int, mesh: Mesh) -> dict[str, Any]:
    """A forward and training steps, each decided once and called at all sizes."""
    torch.manual_seed(0)
    model, (ids, target) = Model().double(), inputs(*PAIRS[0])
    open_sizes = {0: Dim("batch", max=16), 1: Dim("length", max=16)}
    expected = [model(inputs(*pair)[0]) for pair in PAIRS]
    plan: dict[str, object] = {"up.weight": "tp: S(0), dp: S(0)", "down.weight": "tp: S(1)"}
    program = spmdir.parallelize(model, mesh, {**plan, "ids": "dp: S(0)"}, (ids,), dynamic_shapes=(open_sizes,))
    outputs = [program(inputs(*pair)[0]) for pair in PAIRS]
    again = program(inputs(*PAIRS[0])[0])
    refused = error_of(lambda: program(torch.zeros(17, 3, dtype=torch.int64)))
    step, state = spmdir.training_step(model, loss_of, optimizer_of("sgd", model, lr=0.1))
    trained = spmdir.parallelize(step, mesh, plan, (ids, target), state=state, dynamic_shapes=(open_sizes,) * 2)
    losses, wanted = [], []
    for pair in PAIRS:
        losses.append(trained(*inputs(*pair)))
        loss, state = step(state, *inputs(*pair))
        wanted.append(loss)
    return {
        "modules": modules(rank, mesh, model, {**plan, "ids": "dp: S(0)"}, open_sizes),
        "outputs": [*outputs, again],
        "expected": [*expected, expected[0]],
        "losses": losses,
        "wanted": wanted,
        "state": trained.gather_state(),
        "wanted state": state,
        "refused": refused,
        "different": error_of(lambda: trained(inputs(3, 4)[0], inputs(3, 5)[1])),
        "own": own_batches(rank, mesh, open_sizes),
        "means": means(rank, mesh, open_sizes),
        "counters": counters(rank, mesh),
        "needed": needed(rank, model, mesh, open_sizes),
        "special": special(mesh),
        "largest": largest(rank, Tokens().double(), mesh),
    }
