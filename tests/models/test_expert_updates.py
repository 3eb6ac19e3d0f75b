"""Updates of mixtures of experts with dispatched rows equal those of one device: losses, parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from torch.utils import _pytree as pytree

import spmdir
from spmdir.pipeline.pipeline import SCHEDULED, STANDARD
from spmdir.plans.resolve import resolve
from spmdir.reshard.topology import Topology
from tests.lowering.gloo_ranks import on_ranks
from tests.models.test_expert_training import (
    MODELS,
    RoutingInF64,
    build,
    checkpointed,
    token_ids,
    unchanged,
    with_dispatched_rows,
    with_ties,
)

UPDATES = 10
EXACT = 1e-12
SLOW = Topology("slow", 100e9, 100e9, 0.0, 0.0, 0.0, 1000e9, peak_flops={"vector": 1e9})
"""A machine on which arithmetic takes so long that ranks share it."""


class Muon(Optimizer):
    """Muon for one matrix, or for a matrix of each expert: Newton-Schulz iterations of the momentum."""

    def __init__(self, params: list[nn.Parameter]):
        super().__init__(params, {"lr": 0.05})
        for weight in params:
            self.state[weight]["momentum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight]["momentum"].mul_(0.9).add_(weight.grad)
                if weight.dim() > 1:
                    momentum = momentum / (momentum.square().sum((-2, -1), keepdim=True).sqrt() + 1e-7)
                    for _ in range(2):
                        square = momentum @ momentum.mT
                        momentum = 2 * momentum - 1.5 * square @ momentum + 0.5 * square @ square @ momentum
                weight.sub_(group["lr"] * momentum)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.5),
    "adamw": lambda parameters: AdamW(parameters, lr=0.1, eps=1e-2, weight_decay=0.1),
    "muon": Muon,
}


class BalancedGate(nn.Module):
    """DeepSeek's router, which changes the bias of an expert by the number of tokens that have chosen it."""

    def __init__(self, gate: Any):
        super().__init__()
        self.gate = gate

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = self.gate(hidden)
        bias, chosen = self.gate.e_score_correction_bias, ids.flatten()
        counts = torch.zeros_like(bias).scatter_add(0, chosen, torch.ones_like(chosen, dtype=bias.dtype))
        bias += 0.01 * (counts.mean() - counts).sign()
        return logits, weights, ids


class CountingGate(nn.Module):
    """A router that adds the number of tokens of each expert to the buffer `counts`."""

    counts: Tensor

    def __init__(self, gate: Any):
        super().__init__()
        self.gate = gate
        self.register_buffer("counts", torch.zeros(4, dtype=torch.float64))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = self.gate(hidden)
        chosen = ids.flatten()
        ones = torch.ones_like(chosen, dtype=self.counts.dtype)
        self.counts += torch.zeros_like(self.counts).scatter_add(0, chosen, ones)
        return logits, weights, ids


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(model(ids).logits.flatten(0, 1), ids.roll(1).flatten())


def exact_loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    with RoutingInF64():
        return loss_of(model, ids)


def with_balance(model: Any) -> Any:
    for layer in model.model.layers:
        layer.mlp.gate = BalancedGate(layer.mlp.gate)
    return model


def with_counts(model: Any) -> Any:
    for layer in model.model.layers:
        layer.mlp.gate = CountingGate(layer.mlp.gate)
    return model


def balance(buffers: dict[str, Tensor]) -> None:
    """Change the bias of each expert by the number of tokens that chose it in a step, as torchtitan does."""
    for name, counts in buffers.items():
        if name.endswith("gate.counts"):
            bias = buffers[name.replace("gate.counts", "gate.gate.e_score_correction_bias")]
            bias += 0.1 * (counts.mean() - counts).sign()
            counts.zero_()


def with_one_choice(model: Any) -> Any:
    """Let each token choose one expert, the same one."""
    for module in model.modules():
        if hasattr(module, "top_k"):
            module.top_k = 1
    return with_ties(model)


@attrs.frozen
class Case:
    """A model, its optimizer, a mesh with a recipe, the placement of the rows of experts, and the number of updates."""

    model: str
    optimizer: str
    mesh: dict[str, int]
    recipe: str
    rows: str
    tokens: tuple[int, int] = (8, 5)
    tweak: Callable[[Any], nn.Module] = unchanged
    options: dict[str, Any] = attrs.field(factory=dict)
    loss: Callable[..., Tensor] = exact_loss_of
    capacity: int = 0
    after_step: Callable[[dict[str, Tensor]], None] = lambda buffers: None
    updates: int = 3

    @property
    def localizing(self) -> str:
        """The passes that give rows slots, if the case has a capacity."""
        return f"pad-rows{{capacity={self.capacity}}},localize" if self.capacity else "localize"


FLAT, SQUARE, FOLDED = {"ep": 4}, {"dp": 2, "ep": 2}, {"dp": 2, "ep": 4}
CUBE = {"dp": 2, "ep": 2, "tp": 2}
GROUPED = "ep: Grouped(0)"
CASES = {
    "mixtral, 4 ranks": Case("mixtral", "sgd", FLAT, "ep", GROUPED),
    "qwen3, 4 ranks": Case("qwen3", "sgd", FLAT, "ep", GROUPED),
    "deepseek, 4 ranks": Case("deepseek", "sgd", FLAT, "ep", GROUPED),
    "mixtral, 8 ranks": Case("mixtral", "adamw", FOLDED, "fsdp*ep", f"dp: Home(0), {GROUPED}", updates=UPDATES),
    "qwen3, 8 ranks": Case("qwen3", "adamw", CUBE, "fsdp*tp*ep", f"dp: Home(0), {GROUPED}", updates=UPDATES),
    "deepseek, 8 ranks": Case("deepseek", "adamw", CUBE, "fsdp*tp*ep", f"dp: Home(0), {GROUPED}", updates=UPDATES),
    "rows over two axes": Case("deepseek", "adamw", SQUARE, "fsdp*ep", f"dp: Grouped(0), {GROUPED}"),
    "ranks without tokens": Case("qwen3", "sgd", FOLDED, "fsdp*ep", f"dp: Home(0), {GROUPED}", (9, 1)),
    "13 tokens": Case("mixtral", "sgd", FLAT, "ep", GROUPED, (13, 1)),
    "two experts have all tokens": Case("mixtral", "sgd", FLAT, "ep", GROUPED, tweak=with_ties),
    "one expert has all tokens": Case("qwen3", "adamw", FLAT, "ep", GROUPED, tweak=with_one_choice),
    "checkpointed": Case(
        "mixtral",
        "adamw",
        SQUARE,
        "fsdp*ep",
        f"dp: Home(0), {GROUPED}",
        tweak=lambda model: checkpointed(with_counts(model)),
        loss=loss_of,
    ),
    "clipped": Case(
        "deepseek",
        "sgd",
        SQUARE,
        "fsdp*ep",
        GROUPED,
        tweak=with_counts,
        after_step=balance,
        options={"clip_grad_norm": 0.05, "accumulate": 2},
    ),
    "deepseek in micro-batches": Case(
        "deepseek", "sgd", SQUARE, "fsdp*ep", f"dp: Home(0), {GROUPED}", tweak=with_balance, options={"accumulate": 2}
    ),
    "qwen3 in slots": Case("qwen3", "sgd", FLAT, "ep", GROUPED, capacity=10),
    "mixtral in slots": Case("mixtral", "adamw", FOLDED, "fsdp*ep", f"dp: Home(0), {GROUPED}", capacity=5),
    "muon": Case("qwen3", "muon", SQUARE, "fsdp*ep", f"dp: Home(0), {GROUPED}"),
}


def training(case: Case, experts: str) -> tuple[nn.Module, Any, Any]:
    """Return the model, the step and its state."""
    model = case.tweak(build(case.model, experts))
    optimizer = OPTIMIZERS[case.optimizer](list(model.parameters()))
    return model, *spmdir.training_step(model, case.loss, optimizer, **case.options)


def partitioned(case: Case, topology: Topology | str = "flat") -> tuple[Any, list[Any]]:
    """Return the program of a step on ranks, and the leaves of the state."""
    model, step, state = training(case, "grouped_mm")
    mesh, ids = spmdir.Mesh(case.mesh), token_ids(*case.tokens)
    leaves = pytree.tree_leaves(state)
    plan = resolve(case.recipe, model, mesh).with_inputs(len(leaves), 1)
    graph = make_fx(step, tracing_mode="fake")(state, ids)
    module = spmdir.import_fx(graph, mesh, plan)
    module = with_dispatched_rows(module, case.rows) if case.rows else module
    steps = STANDARD.replace("localize", case.localizing)
    return spmdir.run_passes(module, spmdir.Pipeline(steps, topology=topology)), leaves


def errors(found: list[Any], expected: list[Any], names: list[str]) -> dict[str, float]:
    """Return name of a tensor → its largest error, relative to its largest element, if that is not small."""
    return {
        name: error
        for name, one, other in zip(names, found, expected, strict=True)
        if isinstance(other, Tensor) and other.is_floating_point()
        if not (error := float((one - other).abs().max() / other.abs().max().clamp(min=1e-3))) < EXACT
    }


ON_RANKS = ("two experts have all tokens", "qwen3 in slots", "clipped")
"""The cases that run on real ranks, with the same checks as others on simulated ranks: one of each model."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in ON_RANKS])
def test_updates_equal_those_of_one_device(name: str) -> None:
    case = CASES[name]
    module, leaves = partitioned(case)
    _, step, state = training(case, "eager")
    names = ["loss", *(str(path) for path, _ in pytree.tree_leaves_with_path(state))]
    for _ in range(case.updates):
        ids = token_ids(*case.tokens)
        loss, state = step(state, ids)
        results = spmdir.simulate(module, [*leaves, ids])
        assert errors(results, [loss, *pytree.tree_leaves(state)], names) == {}
        leaves = list(results[1:])


RECIPES = {"ep": ("ep",), "fsdp*ep": ("dp", "ep"), "zero1*ep": ("dp", "ep"), "tp*ep": ("tp", "ep"),
           "fsdp*tp*ep": ("dp", "tp", "ep"), "ddp(dp)*fsdp(ep)*ep": ("dp", "ep")}  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A case whose decision is left to the search."""
    recipe = draw(st.sampled_from(sorted(RECIPES)))
    axes = draw(st.permutations(RECIPES[recipe]))
    sizes = {axis: draw(st.sampled_from([2, 4] if axis == "ep" and len(axes) < 3 else [2])) for axis in axes}
    ranks = sizes.get("dp", 1) * sizes["ep"]
    optimizer = draw(st.sampled_from(["sgd", "muon"]))
    # Attention to one token has the gradient 0 for queries. Muon would scale its rounding to 1.
    length = draw(st.integers(2 if optimizer == "muon" else 1, 3))
    tokens = draw(st.integers(ranks, 2 * ranks + 1)), length
    tweak = draw(st.sampled_from([unchanged, with_ties]))
    return Case(draw(st.sampled_from(sorted(MODELS))), optimizer, sizes, recipe, "", tokens, tweak)


@settings(max_examples=2)
@given(cases())
@example(Case("mixtral", "muon", SQUARE, "fsdp*ep", "", (4, 2)))  # the search mixed routed and other placements
@example(Case("deepseek", "sgd", SQUARE, "fsdp*ep", "", (8, 5)))  # it nested the axes of a dispatch in another order
def test_an_update_of_any_recipe_equals_that_of_one_device(case: Case) -> None:
    module, leaves = partitioned(case, SLOW)
    _, step, state = training(case, "eager")
    ids = token_ids(*case.tokens)
    names = ["loss", *(str(path) for path, _ in pytree.tree_leaves_with_path(state))]
    loss, state = step(state, ids)
    assert errors(spmdir.simulate(module, [*leaves, ids]), [loss, *pytree.tree_leaves(state)], names) == {}


def parallel_step(case: Case) -> Any:
    """Return the step on real ranks, on a machine where rows move."""
    _, step, state = training(case, "grouped_mm")
    mesh, ids = spmdir.Mesh(case.mesh), token_ids(*case.tokens)
    pipeline = spmdir.Pipeline(SCHEDULED.replace("localize", case.localizing), topology=SLOW)
    return spmdir.parallelize(step, mesh, case.recipe, (ids,), state=state, pipeline=pipeline)


def buffers_of(parallel: Any) -> dict[str, Any]:
    """Return the buffers of the model as DTensors, by their names."""
    prefix = "buffers."
    return {name.removeprefix(prefix): x for name, x in parallel.state.items() if name.startswith(prefix)}


def train_on_ranks(rank: int) -> dict[str, list[Any]]:
    """Return by case whether rows move, the losses, and the state after ten updates on this rank."""
    results: dict[str, list[Any]] = {}
    for name in ON_RANKS:
        parallel, ids = parallel_step(CASES[name]), token_ids(*CASES[name].tokens)
        losses = []
        for _ in range(UPDATES):
            losses.append(parallel(ids))
            CASES[name].after_step(buffers_of(parallel))
        moves_rows = f"spmd.exchange_{'slots' if CASES[name].capacity else 'rows'}_start" in str(parallel.rank_module)
        results[name] = [moves_rows, *losses, *pytree.tree_leaves(parallel.gather_state())]
    return results


@pytest.mark.gloo
def test_ten_updates_on_real_ranks_equal_those_of_one_device(tmp_path: Path) -> None:
    of_ranks = on_ranks(4, train_on_ranks, tmp_path)
    for name in ON_RANKS:
        _, step, state = training(CASES[name], "eager")
        losses = []
        for _ in range(UPDATES):
            loss, state = step(state, token_ids(*CASES[name].tokens))
            CASES[name].after_step(state["buffers"])
            losses.append(loss)
        names = [f"loss {n}" for n in range(UPDATES)] + [str(p) for p, _ in pytree.tree_leaves_with_path(state)]
        for results in of_ranks:
            assert results[name][0], "no rows move"
            assert errors(results[name][1:], [*losses, *pytree.tree_leaves(state)], names) == {}


def resume_with_fewer_experts_on_a_rank(rank: int, folder: str) -> tuple[list[Any], list[Any]]:
    """Save after an update with 2 experts on a rank, and resume with one. Return the results of the next update."""
    saved, resumed = (
        parallel_step(Case("mixtral", "adamw", mesh, "fsdp*ep", "")) for mesh in ({"dp": 2, "ep": 2}, {"ep": 4})
    )
    ids = token_ids(8, 5)
    saved(ids)
    spmdir.checkpoint.save(folder, {"step": saved})
    spmdir.checkpoint.load(folder, {"step": resumed})
    first, second = ([step(ids), *pytree.tree_leaves(step.gather_state())] for step in (saved, resumed))
    return first, second


@pytest.mark.gloo
def test_a_checkpoint_of_experts_is_loaded_with_another_number_of_localizing(tmp_path: Path) -> None:
    for first, second in on_ranks(4, resume_with_fewer_experts_on_a_rank, tmp_path, str(tmp_path / "run")):
        assert errors(second, first, list(map(str, range(len(first))))) == {}
