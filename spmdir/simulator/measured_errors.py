"""Lossy steps, measured where they are: what they make of what ranks hold, beside what an exact step would make.

The program then goes on with the exact values, so that all that comes after is compared with one device to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from xdsl.ir import Operation, OpResult, SSAValue

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Noise, Placement
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import name_of
from spmdir.dialects.values import global_type
from spmdir.reshard.cost import local_shape
from spmdir.simulator.distribution import collect, distribute
from spmdir.simulator.rank_run import Issued
from spmdir.torch_interop.dtypes import TORCH_DTYPES


@attrs.frozen
class MeasuredError:
    """The error of one step of a program on some values.

    Attributes:
        step: its placements and its place.
        found: norm(difference from the exact value) over the norms that it is relative to.
        bound: the most that its placement declares; None if no bound is known.
        norm: "max" or "l2".
        rounding: how large `found` may be by rounding.
    """

    step: str
    found: float
    bound: float | None
    norm: str
    rounding: float

    @property
    def is_within(self) -> bool:
        """Return whether the step is off by no more than it may be."""
        return self.bound is None or self.found <= self.bound + self.rounding

    def __str__(self) -> str:
        most = "no bound is known" if self.bound is None else f"at most {self.bound:.1e} is declared"
        return f"{self.step} is off by {self.found:.1e} ({self.norm}); {most}"


@attrs.frozen
class MeasuredRun:
    """What a program computes if its lossy steps are exact, and how far they are off.

    Attributes:
        outputs: as of `simulate`.
        errors: of the lossy steps, in the order in which they ran.
        used: the lossy placements that steps entered or left.
    """

    outputs: list[Any]
    errors: list[MeasuredError]
    used: frozenset[Placement]


@attrs.define
class Measuring:
    """Measures the lossy steps of a program while it is simulated.

    Attributes:
        ops: those of the program, by number.
        errors: what has been measured so far.
        exact: value that ranks hold in elements that lose precision → the tensor that it stands for.
        used: the lossy placements that steps entered or left.
    """

    mesh: Mesh
    noise: Noise
    ops: Sequence[Operation]
    errors: list[MeasuredError] = attrs.field(factory=list)
    exact: dict[SSAValue, Tensor] = attrs.field(factory=dict)
    used: set[Placement] = attrs.field(factory=set)

    def step(self, calls: Sequence[Issued]) -> list[Tensor]:
        """Return what an exact step gives the ranks, of what they held before the step and what it made of that."""
        number, member = calls[0].arguments[2:4]
        op, mesh = self.ops[number], self.mesh
        assert isinstance(op, Collective)
        (operand, result), step, meta = op.pairs[member], op.steps(mesh)[member], global_type(op.operands[member], mesh)
        assert meta is not None  # the program is localized
        operand = started_value(operand)
        if not step.is_lossy(mesh):  # it moves other axes of a value in a lossy placement
            if operand in self.exact:
                self.exact[result] = self.exact[operand]
            return [call.arguments[1] for call in calls]
        source, target = step.source, step.target
        self.used.update(placement for pair in step.moved(mesh) for placement in pair if placement.error)
        held, made = ([call.arguments[at] for call in calls] for at in (0, 1))
        # What ranks hold may be of another element type than the tensor; else the inputs have told its precision.
        dtype = TORCH_DTYPES[meta.dtype] if source.has_own_type else held[0].dtype
        found = collect(made, target, mesh, meta.shape, dtype)
        right = collect(held, source, mesh, meta.shape, dtype)
        before, after = step.ends(mesh)
        error = before.error or after.error
        size = measured(error.norm, right)
        if error.of == "shards" and not source.has_own_type:
            size = sum(measured(error.norm, shard) for shard in held)
        apart = measured(error.norm, found - right)
        rounding = 64 * torch.finfo(right.dtype).eps if right.is_floating_point() or right.is_complex() else 0.0
        bound = error.bound(local_shape(source, meta.shape, mesh), mesh.group_size(step.axes))
        off = apart / size if size else math.inf if apart else 0.0
        if not before.error and off <= rounding:
            return made  # a value enters the placement as it is
        where = location_of(op) or name_of(result)
        self.errors.append(MeasuredError(f"{before} -> {after} at {where}", off, bound, error.norm, rounding))
        right = self.exact.get(operand, right)
        if target.has_own_type:
            self.exact[result] = right
        return distribute(right, target, mesh, self.noise)


def started_value(value: SSAValue) -> SSAValue:
    """Return what gives `value` after a wait, if one gives it; else `value`."""
    while isinstance(value, OpResult) and isinstance(value.op, WaitOp):
        value = value.op.operands[value.index]
    return value


def measured(norm: str, tensor: Tensor) -> float:
    """Return a norm of a tensor, by its name in `spmdir.core.placement.error.NORMS`."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return float(torch.linalg.vector_norm(wide, math.inf if norm == "max" else 2)) if tensor.numel() else 0.0
