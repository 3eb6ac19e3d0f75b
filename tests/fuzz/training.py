"""Random small modules, plans, optimizers and loops on two or four ranks: parameters are those of one device."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spmdir
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.rank_processes import run_on_ranks
from tests.runtime.gradient_cases import FORMS, OPTIMIZERS, POSSIBLE, parts

WIDTH, BATCH = 6, 8

MESHES = ({"dp": 2}, {"dp": 2, "tp": 1}, {"dp": 2, "tp": 2})

LAYERS = ("linear", "norm", "tanh", "gelu", "dropout", "narrow")

PLACED = ("S(0)", "S(1)", "Strided(0, 2)", "Strided(1, 2)", "Cyclic(0, 1)", "Cyclic(1, 2)", "Ragged(0, [1, 5])", "")
"""What a plan says of a parameter along an axis."""


@attrs.frozen
class Step:
    """One forward and backward, and what follows.

    Attributes:
        heads: which outputs the loss uses.
        is_last: whether the optimizer steps after it; else gradients are added up.
        is_unreduced: whether it runs in `no_sync`, if it is not the last one.
        frozen: which parameter stops or begins to learn before it, if one does.
        looks: whether a forward without gradients comes first.
    """

    heads: frozenset[int]
    is_last: bool
    is_unreduced: bool
    frozen: int | None
    looks: bool


@attrs.frozen
class Training:
    """A module, a plan, an optimizer and a loop."""

    mesh: dict[str, int]
    layers: tuple[str, ...]
    region: int
    batch_norm: bool
    plan: tuple[tuple[int, str, str], ...]
    optimizer: tuple[str, str]
    groups: bool
    clip: bool
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join(f"{field}: {value}" for field, value in attrs.asdict(self, recurse=False).items())

    def run(self, rank: int) -> tuple[str, str]:
        """Train on ranks and on one device; compare what this rank holds."""
        torch.manual_seed(0)
        model: Any = Net(self).double()
        x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
        mesh = spmdir.Mesh(self.mesh)
        alone, sharded = copy.deepcopy(model), spmdir.shard_module(model, mesh, self._plan(model), (x,))
        try:
            self._train(alone, x)
        except TypeError as error:  # fused SGD, where a parameter has its first gradient after another one's
            return "rejected", f"torch cannot train it on one device: {error}"
        if not self._train(sharded, x):
            return "rejected", "no backward after one in no_sync() reduces its gradients"
        for (name, mine), other in zip(sharded.named_parameters(), alone.parameters(), strict=True):
            if (mine.grad is None) != (other.grad is None):
                return "wrong", f"the gradient of {name} is {mine.grad}, {other.grad} on one device"
        for mine, other in parts(sharded, alone):
            if not torch.allclose(mine, other, rtol=1e-8, atol=1e-9):
                return "wrong", f"a parameter differs by {(mine - other).abs().max()}"
        for (name, mine), other in zip(sharded.named_buffers(), alone.buffers(), strict=True):
            if not torch.allclose(mine.full_tensor(), other, rtol=1e-9, atol=1e-9):  # type: ignore  # a DTensor
                return "wrong", f"buffer {name} differs"
        return "right", ""

    def _plan(self, model: nn.Module) -> dict[str, str]:
        """Return what the plan says of parameters that have the dimension, by the axes that the mesh has."""
        found: dict[str, list[str]] = {}
        for at, axis, placement in self.plan:
            named = list(model.named_parameters())
            name, parameter = named[at % len(named)]
            fits = not placement or int(placement.partition("(")[2][0]) < parameter.dim()
            fits &= not placement.startswith("Ragged") or (parameter.shape[0], self.mesh.get(axis)) == (WIDTH, 2)
            if axis in self.mesh and fits and not any(entry.startswith(axis) for entry in found.get(name, ())):
                found.setdefault(name, []).extend([f"{axis}: {placement}"] if placement else [])
        return {"x": "dp: S(0)", **{name: ", ".join(entries) for name, entries in found.items()}}

    def _train(self, model: Any, x: Tensor) -> bool:
        """Train `model`; return whether a backward outside `no_sync` came before each update, if one inside did."""
        torch.manual_seed(1)
        is_reduced = is_valid = True
        name, form = self.optimizer
        parameters = list(model.parameters())
        first = parameters[:2] if self.groups else parameters
        groups = [{"params": first, "lr": 1e-2}, *([{"params": parameters[2:], "lr": 3e-2}] if self.groups else [])]
        optimizer = getattr(torch.optim, name)(groups, **OPTIMIZERS[name], **FORMS[form])
        for number, step in enumerate(self.steps, 1):
            is_last = step.is_last or number == len(self.steps)
            if step.frozen is not None:
                parameter = parameters[step.frozen % len(parameters)]
                parameter.requires_grad_(not parameter.requires_grad)
            if step.looks:
                with torch.no_grad():
                    model(x)
            is_unreduced = step.is_unreduced and not is_last and hasattr(model, "no_sync")
            with model.no_sync() if is_unreduced else nullcontext():
                outputs = model(x)
                loss = sum(outputs[head].square().mean() for head in step.heads)
                if loss.requires_grad:  # type: ignore  # a tensor
                    loss.backward()  # type: ignore
                    is_reduced = not is_unreduced
            if is_last:
                is_valid &= is_reduced
                is_reduced = True
                if self.clip:
                    nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
                optimizer.zero_grad()
        return is_valid


class Net(nn.Module):
    """Layers, some of them in a checkpointed region, and two heads.

    A batch norm comes first, where no bias is before it: such a one has a gradient of rounding alone.
    """

    def __init__(self, case: Training):
        super().__init__()
        makers = {
            "linear": lambda: nn.Linear(WIDTH, WIDTH),
            "norm": lambda: nn.LayerNorm(WIDTH),
            "tanh": nn.Tanh,
            "gelu": nn.GELU,
            "dropout": lambda: nn.Dropout(0.25),
            "narrow": lambda: nn.Sequential(nn.Linear(WIDTH, 3), nn.SiLU(), nn.Linear(3, WIDTH)),
        }
        self.start = nn.BatchNorm1d(WIDTH) if case.batch_norm else nn.Identity()
        self.layers = nn.ModuleList(makers[layer]() for layer in case.layers)
        self.heads = nn.ModuleList((nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 5, bias=False)))
        self.region = case.region

    def inner(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for layer in self.layers[: self.region]:
            x = layer(x)
        return x

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = checkpoint(self.inner, x, use_reentrant=False) if self.region else self.inner(x)  # type: ignore[assignment]
        for layer in self.layers[self.region :]:
            x = layer(x)
        first, second = self.heads
        return first(x.tanh()), second(x.sin())


def check(case: Training) -> str | None:
    """Run the case on its ranks; raises Wrong unless all are right, or all reject it."""
    world = math.prod(case.mesh.values())
    rejected = run_on_ranks(world, case)
    if rejected and len(rejected) < world:
        raise Wrong(f"some ranks reject it: {rejected}")
    return rejected[0] if rejected else None


steps = st.builds(
    Step,
    heads=st.frozensets(st.sampled_from((0, 1)), min_size=1),
    is_last=st.booleans(),
    is_unreduced=st.booleans(),
    frozen=st.one_of(st.none(), st.none(), st.integers(0, 9)),
    looks=st.sampled_from((False, False, True)),
)

trainings = st.builds(
    Training,
    mesh=st.sampled_from(MESHES),
    layers=st.lists(st.sampled_from(LAYERS), min_size=1, max_size=3).map(tuple),
    region=st.integers(0, 2),
    batch_norm=st.booleans(),
    plan=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(("dp", "tp")), st.sampled_from(PLACED)), max_size=6).map(
        tuple
    ),
    optimizer=st.sampled_from([pair for pair in POSSIBLE if pair[0] != "Muon"]),
    groups=st.booleans(),
    clip=st.booleans(),
    steps=st.lists(steps, min_size=1, max_size=4).map(tuple),
)

TRAINING = Kind("training", trainings, check, examples=8, seconds=60, share=1)
