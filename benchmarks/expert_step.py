"""A training step of mixtures of experts on four gloo ranks, beside torchtitan's dispatcher and gathered tokens.

Both peers are plain torch with the same model and AdamW. `all-to-all` is the scheme of torchtitan: counts and rows by
all-to-all, sizes read by the host, rows permuted by expert. `gathered` gathers the tokens of all ranks, and reduces and
scatters the results. The sides take turns, each round in another order; a round takes as long as its slowest process.
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.nn import functional
from torch.nn.functional import silu

import spmdir
from benchmarks.gloo_step import Measured, measured_in_turns
from benchmarks.measure import Row, options, print_table
from tests.lowering.gloo_ranks import on_ranks

RANKS, CHOSEN = 4, 2

TARGETS = {"all-to-all": 0.9}
"""Peer → the most that the time of a step should be of the peer's."""


@attrs.frozen
class Sizes:
    """The number of layers and of experts, the width of tokens and of experts, and the tokens of all ranks."""

    layers: int
    experts: int
    dim: int
    hidden: int
    tokens: int


Routed = Callable[["Mixture", Tensor, Tensor, Tensor], Tensor]
"""(layer, tokens, scores, experts of the tokens) → the sum of the experts' results for each token."""


class Mixture(nn.Module):
    """A layer of experts in the form of torchtitan, with a shared expert.

    Attributes:
        route: computes the experts; by default on one device.
    """

    def __init__(self, sizes: Sizes):
        super().__init__()
        dim, hidden = sizes.dim, sizes.hidden
        self.number, self.route = sizes.experts, one_device
        self.gate, self.experts = nn.Linear(dim, sizes.experts, bias=False), nn.Module()
        self.shared_up, self.shared_down = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)
        self.experts.w1 = nn.Parameter(torch.randn(sizes.experts, hidden, dim) / dim**0.5)
        self.experts.w2 = nn.Parameter(torch.randn(sizes.experts, dim, hidden) / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        top, ids = torch.topk(self.gate(x).softmax(-1), CHOSEN, dim=-1, sorted=False)
        return x + self.shared_down(silu(self.shared_up(x))) + self.route(self, x, top, ids)

    def products(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the results of the experts whose weights are here, from rows sorted by expert."""
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        hidden = silu(torch._grouped_mm(rows, self.experts.w1.mT, offs=ends))
        return torch._grouped_mm(hidden, self.experts.w2.mT, offs=ends)


def _counts(ids: Tensor, experts: int) -> Tensor:
    """Return the number of rows of each expert."""
    return torch.histc(ids.reshape(-1).float(), bins=experts, min=0, max=experts)


def one_device(layer: Mixture, x: Tensor, top: Tensor, ids: Tensor) -> Tensor:
    """Sort rows by expert, multiply them, and add the results of each token."""
    order = torch.argsort(ids.reshape(-1), stable=True)
    index = (order // CHOSEN).reshape(-1, 1).expand(-1, x.shape[1])
    out = layer.products(torch.gather(x, 0, index), _counts(ids, layer.number))
    return torch.zeros_like(x).scatter_add(0, index, out * top.reshape(-1)[order].reshape(-1, 1))


def all_to_all(layer: Mixture, x: Tensor, top: Tensor, ids: Tensor) -> Tensor:
    """Dispatch rows to the ranks of their experts, as torchtitan's `AllToAllTokenDispatcher` does."""
    group, order = dist.group.WORLD, torch.argsort(ids.reshape(-1), stable=True)
    index = (order // CHOSEN).reshape(-1, 1).expand(-1, x.shape[1])
    counts = _counts(ids, layer.number).to(torch.int64).reshape(RANKS, -1)
    with torch.no_grad():
        arrivals = collectives.wait_tensor(collectives.all_to_all_single(counts, None, None, group))
        sends, receives = counts.sum(1).tolist(), arrivals.sum(1).tolist()
        # Received rows are ordered by rank, then by expert. Experts need them by expert, then by rank.
        experts = torch.arange(arrivals.numel()) % arrivals.shape[1]
        by_expert = torch.argsort(experts.repeat_interleave(arrivals.reshape(-1)), stable=True)
    rows = collectives.all_to_all_single_autograd(torch.gather(x, 0, index), receives, sends, group)
    out = layer.products(rows[by_expert], arrivals.sum(0))
    by_rank = torch.zeros_like(out).index_put((by_expert,), out)
    home = collectives.all_to_all_single_autograd(by_rank, sends, receives, group)
    return torch.zeros_like(x).scatter_add(0, index, home * top.reshape(-1)[order].reshape(-1, 1))


def gathered(layer: Mixture, x: Tensor, top: Tensor, ids: Tensor) -> Tensor:
    """Gather tokens and scores, multiply the rows of own experts, and reduce and scatter the results."""
    tokens, scores = (torch.cat(functional.all_gather(value.contiguous())) for value in (x, top))
    all_ids = collectives.wait_tensor(collectives.all_gather_tensor(ids.contiguous(), 0, dist.group.WORLD))
    first, number = dist.get_rank() * len(layer.experts.w1), len(layer.experts.w1)
    chosen = all_ids.reshape(-1) - first
    own = ((chosen >= 0) & (chosen < number)).nonzero().reshape(-1)
    order = own[torch.argsort(chosen[own], stable=True)]
    index = (order // CHOSEN).reshape(-1, 1).expand(-1, x.shape[1])
    out = layer.products(torch.gather(tokens, 0, index), _counts(chosen[own], number))
    sums = torch.zeros_like(tokens).scatter_add(0, index, out * scores.reshape(-1)[order].reshape(-1, 1))
    return functional.reduce_scatter(torch.empty_like(x), list(sums.chunk(RANKS)))


def build(sizes: Sizes) -> nn.Sequential:
    """Return the model, with equal weights on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*(Mixture(sizes) for _ in range(sizes.layers)))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the mean square of the results."""
    return model(x).square().mean()


def ours(sizes: Sizes, x: Tensor) -> Callable[[], Tensor]:
    """Return the step of a rank that spmdir compiles with the recipe `ep`."""
    model = build(sizes)
    step, state = spmdir.training_step(model, loss_of, torch.optim.AdamW(model.parameters()))
    mesh = spmdir.Mesh({"ep": RANKS})
    parallel = spmdir.parallelize(step, mesh, "ep", (x,), state=state, local_inputs=True)
    own = x.chunk(RANKS)[dist.get_rank()]
    return lambda: parallel(own)


def peer(sizes: Sizes, x: Tensor, route: Routed) -> Callable[[], Tensor]:
    """Return the step of a rank in plain torch: own experts, and all other gradients reduced."""
    model: Any = build(sizes)
    for layer in model:
        layer.route = route
        for name in ("w1", "w2"):
            weight = getattr(layer.experts, name).detach().chunk(RANKS)[dist.get_rank()].clone()
            setattr(layer.experts, name, nn.Parameter(weight))
    optimizer, own = torch.optim.AdamW(model.parameters()), x.chunk(RANKS)[dist.get_rank()]
    shared = [parameter for name, parameter in model.named_parameters() if "experts" not in name]

    def step() -> Tensor:
        loss = loss_of(model, own) / RANKS
        loss.backward()
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in shared])
        dist.all_reduce(flat)
        for parameter, gradient in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
            parameter.grad = gradient.reshape(parameter.shape)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        return total

    return step


def measure(rank: int, sizes: Sizes, rounds: int) -> dict[str, Measured]:
    """Return side → what this rank measured of it.

    Raises:
        AssertionError: the sides have other losses.
    """
    warnings.simplefilter("ignore", FutureWarning)  # torchtitan calls functions of torch that are deprecated
    x = torch.randn(sizes.tokens, sizes.dim, generator=torch.Generator().manual_seed(1))
    sides = {"spmdir": ours(sizes, x), "all-to-all": peer(sizes, x, all_to_all), "gathered": peer(sizes, x, gathered)}
    for _ in range(2):
        losses = [step() for step in sides.values()]
        for loss in losses:
            torch.testing.assert_close(loss, losses[0], rtol=1e-4, atol=0.0)
    return measured_in_turns(sides, rounds)


def rows(ranks: Sequence[dict[str, Measured]], targets: Mapping[str, float]) -> list[Row]:
    """Return the figures of a run, of what each rank measured of "spmdir" and of its peers.

    Args:
        targets: peer → the most that the time of a step should be of the peer's.
    """
    slowest = {
        name: [max(turn) for turn in zip(*(found[name].seconds for found in ranks), strict=True)] for name in ranks[0]
    }
    cpu = {name: sum(statistics.median(found[name].cpu) for found in ranks) for name in ranks[0]}
    shown = []
    for name in list(slowest)[1:]:
        median, least = (of(slowest["spmdir"]) / of(slowest[name]) for of in (statistics.median, min))
        shown.append(Row(f"spmdir over {name}, medians", median, targets.get(name)))
        shown.append(Row(f"spmdir over {name}, minima", least, targets.get(name)))
        shown.append(Row(f"spmdir over {name}, processor time", cpu["spmdir"] / cpu[name]))
    for name, seconds in slowest.items():
        detail = f"{ranks[0][name].messages} messages, {1e3 * cpu[name]:.0f} ms of processor"
        shown.append(Row(name, 1e3 * statistics.median(seconds), form="{:.1f} ms", detail=detail))
    return shown


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="default 20")
    for field, default in zip(attrs.fields(Sizes), (2, 8, 256, 512, 2048), strict=True):
        parser.add_argument(f"--{field.name}", type=int, default=default, help=f"default {default}")
    given = parser.parse_args()
    sizes = Sizes(given.layers, given.experts, given.dim, given.hidden, given.tokens)
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_ranks(RANKS, measure, Path(folder), sizes, given.rounds)
    print_table(f"a step of {sizes} on {RANKS} ranks", rows(ranks, TARGETS))


if __name__ == "__main__":
    main()
