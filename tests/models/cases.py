"""A model, a plan and a mesh as one case: partitioned, simulated, and compared with one device."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import attrs
import pytest
import torch
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.errors import SpmdirWarning
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import signature_name
from tests.models import decisions, plans, shipped, zoo

REST = "insert-reshard,verify-spmd,lower-reshard{topology=flat},fuse-collectives,localize"
PIPELINE = f"propagate{{topology=flat}},{REST}"
"""Where latencies cost nothing, the ops of models as small as these are sharded too."""

QUICK = f"propagate{{topology=flat effort=2}},{REST}"
"""A short search, for shardings that are drawn: whichever decision there is has to compute the same."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest error allowed, relative to the largest value of the output."""


@attrs.frozen
class Layout:
    """A mesh, and which of its axes stand for the dp and tp of the plans."""

    mesh: spmdir.Mesh
    dp: tuple[str, ...] = ()
    tp: tuple[str, ...] = ()

    def adapt(self, sharding: str) -> str:
        """Return a sharding over dp and tp as one over the axes of this mesh; several axes nest in mesh order."""
        entries = re.findall(r"(dp|tp): (\S+?)(?:,|$)", sharding)
        return ", ".join(f"{axis}: {placement}" for name, placement in entries for axis in getattr(self, name))


def _layout(sizes: Mapping[str, int], dp: Sequence[str] = (), tp: Sequence[str] = ()) -> Layout:
    return Layout(spmdir.Mesh(sizes), tuple(dp), tuple(tp))


LAYOUTS: dict[str, Layout] = {
    "8": _layout({"tp": 8}, tp=["tp"]),
    "8dp": _layout({"dp": 8}, dp=["dp"]),
    "2x4": _layout({"dp": 2, "tp": 4}, ["dp"], ["tp"]),
    "4x2": _layout({"dp": 4, "tp": 2}, ["dp"], ["tp"]),
    "2x2x2": _layout({"dp": 2, "cp": 2, "tp": 2}, ["dp"], ["cp", "tp"]),
    "2x2x2dp": _layout({"node": 2, "dp": 2, "tp": 2}, ["node", "dp"], ["tp"]),
    "2x2x2open": _layout({"dp": 2, "pp": 2, "tp": 2}, ["dp"], ["tp"]),
    "3": _layout({"tp": 3}, tp=["tp"]),
    "3dp": _layout({"dp": 3}, dp=["dp"]),
    "2x3": _layout({"dp": 2, "tp": 3}, ["dp"], ["tp"]),
    "4": _layout({"tp": 4}, tp=["tp"]),
}
"""Name → mesh; on 2x2x2open no plan uses the middle axis."""

SEQUENCE = "sequence_parallel"
PLANS = (*plans.KINDS, SEQUENCE)
"""The plans, and tensor parallelism with the sequence of the residual stream sharded."""

RANDOM = "random"
"""A plan `random0`, `random1`, …: any shardings, for models without plans too."""

SHIPPED = "shipped"
"""A plan `shipped0`, …: any placements that come with spmdir, of inputs, parameters and outputs."""

DECIDED = "decided"
"""A plan `decided0`, …: likewise, and any strategies of all ops in place of the search's."""

EXACT = 1e-12
"""Largest error allowed in f64 under the plans SHIPPED and DECIDED."""


def shardings(model: str, plan: str, layout: Layout) -> dict[str, str]:
    """Return what `import_fx` takes."""
    found = plans.plan(model, "tensor_parallel" if plan == SEQUENCE else plan)
    return {key: layout.adapt(value) for key, value in found.items()}


@attrs.frozen(eq=False)
class Program:
    """What is traced, what it is run on, and what one device makes of it; made once a process."""

    traced: Any
    inputs: list[torch.Tensor]
    state: Mapping[str, torch.Tensor]
    expected: list[Any]

    @cached_property
    def arguments(self) -> tuple[list[str], list[TensorMeta]]:
        """The names of what a sharding can be given for, and their shapes."""
        function = ir.main_function(spmdir.import_fx(self.traced, spmdir.Mesh({"x": 2})))
        names = [signature_name(function, "arg_attrs", index) for index in range(len(function.args))]
        metas = [meta_of(argument.type) for argument in function.args]
        return names, [meta for meta in metas if meta]


@cache
def forward(
    model: str, dtype: torch.dtype, sizes: tuple[int, int], decompositions: str = "", residual: str | None = None
) -> Program:
    """Return the exported forward of a model for (batch, sequence)."""
    attention = "eager" if decompositions == "core" else "sdpa"
    exported, inputs = zoo.forward_program(model, dtype, *sizes, attention, residual, decompositions)
    eager = zoo.eager_model(model, dtype, attention)
    with torch.no_grad():
        expected = pytree.tree_leaves(eager(*inputs))
    return Program(exported, list(inputs), {**exported.state_dict, **exported.constants}, expected)


@cache
def training(
    model: str, dtype: torch.dtype, sizes: tuple[int, int], optimizer: str = "adamw", residual: str | None = None
) -> Program:
    """Return the traced training step of a model, in the middle of training."""
    graph, leaves, names = zoo.training_graph(model, optimizer, dtype, *sizes, residual=residual)
    step, arguments = zoo.training_case(model, optimizer, dtype, *sizes, residual=residual)
    flat, spec = pytree.tree_flatten(arguments)
    inputs = [_warm(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    assert len(flat) == len(inputs)
    expected = pytree.tree_leaves(step(*pytree.tree_unflatten(inputs, spec)))
    return Program(graph, inputs, {}, expected)


def _warm(name: str, value: torch.Tensor) -> torch.Tensor:
    """Moments as some steps leave them: from zero, a gradient of rounding noise would decide an update by its sign."""
    generator = torch.Generator().manual_seed(len(name))
    if name.startswith(("exp_avg.", "exp_avg_sq.", "momentum_buffer.")):
        return torch.rand(value.shape, generator=generator, dtype=value.dtype) * 0.1 + 0.01
    return value + 3 if name.startswith("step.") else value


def errors(
    program: Program,
    layout: Layout,
    given: Mapping[str, object],
    out: Sequence[object] | None = None,
    pipeline: str = PIPELINE,
) -> list[float]:
    """Return the relative error of every output, of a program that `pipeline` partitions.

    Raises:
        SpmdirError: the program is rejected.
        AssertionError: an output has the wrong shape or element type.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpmdirWarning)
        module = spmdir.import_fx(program.traced, layout.mesh, given, out_shardings=out)
        spmdir.run_passes(module, pipeline, verify_each=True)
    found = spmdir.simulate(module, program.inputs, program.state)
    return [error(a, b) for a, b in zip(found[: len(program.expected)], program.expected, strict=True)]


def error(found: Any, expected: Any) -> float:
    """Return the largest difference between two outputs, relative to the largest value."""
    if not isinstance(expected, torch.Tensor):
        return 0.0 if found == expected else float("inf")
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (found.shape, expected.shape)
    if not expected.numel():
        return 0.0
    difference = (found.double() - expected.double()).abs().max().item()
    if difference != difference:
        return float("inf")
    return difference / (expected.double().abs().max().item() or 1.0)


def program_of(
    name: str, plan: str, layout: Layout, dtype: torch.dtype = torch.float64, sizes: tuple[int, int] = (4, 8)
) -> Program:
    """Return the program `llama` or `llama:core` (the forward) or `llama:adamw` (the training step) under a plan."""
    model, _, kind = name.partition(":")
    residual = layout.adapt(plans.RESIDUAL) if plan == SEQUENCE else None
    if kind in zoo.OPTIMIZERS:
        return training(model, dtype, sizes, kind, residual)
    return forward(model, dtype, sizes, kind, residual)


def worst_error(
    name: str, plan: str, mesh: str, dtype: torch.dtype = torch.float64, sizes: tuple[int, int] = (4, 8)
) -> float:
    """Return the largest error of a case over all its outputs."""
    layout = LAYOUTS[mesh]
    program = program_of(name, plan, layout, dtype, sizes)
    if plan.startswith(RANDOM):
        return max(errors(program, layout, random_shardings(program, layout.mesh, plan), pipeline=QUICK))
    if plan.startswith((SHIPPED, DECIDED)):
        with pytest.MonkeyPatch.context() as patch:
            if plan.startswith(DECIDED):
                decisions.decide_at_random(patch, plan)
            return max(
                errors(
                    program,
                    layout,
                    *shipped.plan(*program.arguments, program.expected, layout.mesh, plan),
                    QUICK,
                )
            )
    return max(errors(program, layout, shardings(name.partition(":")[0], plan, layout)))


def random_shardings(program: Program, mesh: spmdir.Mesh, seed: str) -> dict[str, str]:
    """Any shardings of about half of what a program takes, with open axes."""
    choice = random.Random(seed)
    names, metas = program.arguments
    found = {}
    for name, meta in zip(names, metas, strict=True):
        kinds = ["R", "?", *(f"S({dim})" for dim in range(meta.rank) for _ in range(2))]
        axes = choice.sample(mesh.axis_names, len(mesh.axis_names))
        text = ", ".join(f"{axis}: {choice.choice(kinds)}" for axis in axes)
        if choice.random() < 0.5:
            found[name] = text
    return found
