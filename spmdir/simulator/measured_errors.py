"""Measure the errors of lossy steps: compare the result of each step with that of an exact step.

The program continues with the exact values. So the errors of lossy steps do not accumulate, and the results of other
ops equal those of one device up to rounding.
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
        step: the placements and the location of the step.
        value: the norm of the difference from the exact value, relative to the norm of the value or of its shards.
        bound: the bound that its placement declares; None if no bound is known.
        norm: "max" or "l2".
        rounding: the largest `value` that rounding explains.
    """

    step: str
    value: float
    bound: float | None
    norm: str
    rounding: float

    @property
    def is_within(self) -> bool:
        """Return whether the error is within its bound, up to rounding."""
        return self.bound is None or self.value <= self.bound + self.rounding

    def __str__(self) -> str:
        bound_text = "no bound is known" if self.bound is None else f"at most {self.bound:.1e} is declared"
        return f"{self.step} is off by {self.value:.1e} ({self.norm}); {bound_text}"


@attrs.frozen
class MeasuredRun:
    """The outputs of a program with exact steps in place of lossy ones, and the errors of the lossy steps.

    Attributes:
        outputs: the outputs, as in `simulate`.
        errors: the errors of the lossy steps, in the order of execution.
        used: the lossy placements that steps entered or left.
    """

    outputs: list[Any]
    errors: list[MeasuredError]
    used: frozenset[Placement]


@attrs.define
class Measuring:
    """Measures the lossy steps of a program during a simulation.

    Attributes:
        mesh: the mesh of the program.
        noise: the noise of partial values.
        ops: the ops of the program, which steps refer to by index.
        errors: the errors that were measured so far.
        exact: value in a placement with a less precise element type → the exact global tensor.
        used: the lossy placements that steps entered or left.
    """

    mesh: Mesh
    noise: Noise
    ops: Sequence[Operation]
    errors: list[MeasuredError] = attrs.field(factory=list)
    exact: dict[SSAValue, Tensor] = attrs.field(factory=dict)
    used: set[Placement] = attrs.field(factory=set)

    def step(self, calls: Sequence[Issued]) -> list[Tensor]:
        """Measure a step, and return the local tensor of each rank after an exact step.

        A step that is not lossy is not measured: its results are returned unchanged. The same holds for a step into a
        lossy placement that rounds nothing here.

        Args:
            calls: [rank], the call of `measured_step`, with the local tensor before and after the step.
        """
        op_index, member = calls[0].arguments[2:4]  # `member` is the index of the tensor if the op is a bucket
        op, mesh = self.ops[op_index], self.mesh
        assert isinstance(op, Collective)
        operand, result = op.pairs[member]
        step, meta = op.steps(mesh)[member], global_type(op.operands[member], mesh)
        assert meta is not None  # the program is localized
        operand = started_value(operand)
        if not step.is_lossy(mesh):  # the step changes other axes of a value in a lossy placement
            if operand in self.exact:
                self.exact[result] = self.exact[operand]
            return [call.arguments[1] for call in calls]
        source, target = step.source, step.target
        for changed in step.placement_changes(mesh):
            self.used.update(placement for placement in changed if placement.error)
        values_before, values_after = [call.arguments[0] for call in calls], [call.arguments[1] for call in calls]
        # Local tensors may have a different element type; otherwise, the inputs define the precision.
        dtype = TORCH_DTYPES[meta.dtype] if source.has_own_type else values_before[0].dtype
        actual = collect(values_after, target, mesh, meta.shape, dtype)
        exact = collect(values_before, source, mesh, meta.shape, dtype)
        old_placement, new_placement = step.ends(mesh)
        declared = old_placement.error or new_placement.error
        reference = values_before if declared.of == "shards" and not source.has_own_type else [exact]
        error = _relative_error(declared.norm, actual - exact, reference)
        rounding = 64 * torch.finfo(exact.dtype).eps if exact.is_floating_point() or exact.is_complex() else 0.0
        bound = declared.bound(local_shape(source, meta.shape, mesh), mesh.group_size(step.axes))
        if not old_placement.error and error <= rounding:
            return values_after  # the value enters the placement without an error
        place = location_of(op) or name_of(result)
        self.errors.append(
            MeasuredError(f"{old_placement} -> {new_placement} at {place}", error, bound, declared.norm, rounding)
        )
        exact = self.exact.get(operand, exact)
        if target.has_own_type:
            self.exact[result] = exact
        return distribute(exact, target, mesh, self.noise)


def started_value(value: SSAValue) -> SSAValue:
    """Return the value that `value` is a wait for, else `value`."""
    while isinstance(value, OpResult) and isinstance(value.op, WaitOp):
        value = value.op.operands[value.index]
    return value


def tensor_norm(norm: str, tensor: Tensor) -> float:
    """Return a norm of a tensor, by its name in `spmdir.core.placement.error_bound.NORMS`."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return float(torch.linalg.vector_norm(wide, math.inf if norm == "max" else 2)) if tensor.numel() else 0.0


def _relative_error(norm: str, difference: Tensor, reference: Sequence[Tensor]) -> float:
    """Return the norm of `difference` over the sum of the norms of `reference`; inf if only the sum is 0."""
    size = sum(tensor_norm(norm, tensor) for tensor in reference)
    error = tensor_norm(norm, difference)
    if size:
        return error / size
    return math.inf if error else 0.0
