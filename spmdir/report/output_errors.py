"""How far the results of a program may be off by its lossy steps: declared bounds, followed through the ops after.

A bound is of the largest absolute element. It is followed through ops that let an error grow by a known factor, as data
movement and sums of operands do; past others, such as a product with another tensor, no bound is known. The rounding of
arithmetic is not counted, as everywhere, that of conversions to types of fewer digits is, for values in their range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.dtype import BF16, F8E4M3FN, F8E5M2, F16, F32, F64, DType
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.collectives import Collective, SpmdOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import name_of
from spmdir.dialects.reshard_ops import has_lossy
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, signature_kind
from spmdir.reshard.step_errors import StepError, step_errors
from spmdir.rules import RuleSet

Growth = Callable[[AtenOp, int], float]
"""(op, operand) → by how much the largest absolute error of the operand may grow in the result."""


def _other_scaled(op: AtenOp, operand: int) -> float:
    is_other = "other" not in op.argument and operand == len(op.tensors) - 1
    return _size(op.argument.get("alpha", 1)) if is_other else 1.0


def _self_scaled(op: AtenOp, operand: int) -> float:
    return _size(op.argument.get("alpha", 1))


def _steepest(op: AtenOp, operand: int) -> float:
    return max(1.0, _size(op.argument.get("negative_slope", 0.01)))


def _size(number: object) -> float:
    return abs(number) if isinstance(number, (int, float)) else math.nan


def _added(op: AtenOp, operand: int) -> float:
    given, made = op.call().operands[operand], op.metas[0]
    return given.numel / max(made.numel, 1) if made is not None else math.inf


def _factor(op: AtenOp, operand: int) -> float:
    other = op.argument.get("other")
    return abs(other) if isinstance(other, (int, float)) and len(op.tensors) == 1 else math.nan


def _divisor(op: AtenOp, operand: int) -> float:
    factor = _factor(op, operand)
    return 1 / factor if factor else math.nan


_KEEPS = (
    "abs", "add.Scalar", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "cos", "max",
    "maximum", "mean", "mean.dim", "min", "minimum", "neg", "relu", "sigmoid", "sin", "stack",
    "sub.Scalar", "tanh", "_to_copy", "slice.Tensor", "select.int", "flip", "roll", "tril", "triu",
)  # fmt: skip

GROWTH: Mapping[str, Growth] = {
    **{f"aten.{name}": lambda op, operand: 1.0 for name in _KEEPS},
    "aten.add.Tensor": _other_scaled,
    "aten.sub.Tensor": _other_scaled,
    "aten.rsub.Scalar": _self_scaled,
    "aten.leaky_relu": _steepest,
    "aten.sum": _added,
    "aten.sum.dim_IntList": _added,
    "aten.mul.Tensor": _factor,
    "aten.mul.Scalar": _factor,
    "aten.div.Tensor": _divisor,
    "aten.div.Scalar": _divisor,
}
"""Op → by how much an error may grow in it, NaN where that is not known; data movement keeps it."""


EPSILON: Mapping[DType, float] = {
    F64: 2.0**-52,
    F32: 2.0**-23,
    F16: 2.0**-10,
    BF16: 2.0**-7,
    F8E4M3FN: 2.0**-3,
    F8E5M2: 2.0**-2,
}
"""Type → twice its unit roundoff: a value and one that is off by an error may be rounded away from each other."""


@attrs.frozen
class Rounding:
    """What a conversion to a type of fewer digits adds to the error of a value.

    Attributes:
        before, after: the element types.
    """

    before: DType
    after: DType

    def text(self, growth: float = 1.0) -> str:
        """Return the bound, `growth` times as large."""
        return f"at most {EPSILON[self.after.real] * growth:.3g} of the largest absolute element (max)"


Bounds = tuple[tuple[StepError | Rounding, str, float], ...]
"""(source of an error, its place, by how much it may have grown), whose sum bounds the largest error of an element."""


@attrs.frozen
class OutputError:
    """How far a result of a program may be off.

    Attributes:
        result: its number.
        bounds: what the steps contribute.
        unknown: why no bound is known; None if one is.
    """

    result: int
    bounds: Bounds
    unknown: str | None

    def __str__(self) -> str:
        if self.unknown is not None:
            return f"result {self.result}: error unknown: {self.unknown}"
        terms = [
            f"{step.text(growth)}, from {step.before} to {step.after} at {where}" for step, where, growth in self.bounds
        ]
        return f"result {self.result}: error {' + '.join(terms)}"


@attrs.frozen
class _Off:
    """What is known of the error of a value."""

    bounds: Bounds = ()
    unknown: str | None = None

    def grown(self, factor: float) -> _Off:
        return attrs.evolve(self, bounds=tuple((step, where, growth * factor) for step, where, growth in self.bounds))

    def __add__(self, other: _Off) -> _Off:
        return _Off((*self.bounds, *other.bounds), self.unknown or other.unknown)

    def __bool__(self) -> bool:
        return bool(self.bounds) or self.unknown is not None


def output_errors(function: FuncOp, mesh: Mesh, rules: RuleSet) -> tuple[OutputError, ...]:
    """Return how far each result of a function may be off that lossy steps have a part in."""
    off: dict[SSAValue, _Off] = {}
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp):
            continue
        if isinstance(op, SpmdOp) and len(op.pairs) > 1:  # a bucket, or the wait for one: nothing is lost on its way
            off.update((result, off[value]) for value, result in op.pairs if value in off)
            continue
        found = _through(op, [off.get(value, _Off()) for value in op.operands], rules, is_local(function))
        if isinstance(op, Collective):
            found = sum(_steps(op, mesh), found)
        off.update((result, found) for result in op.results if found)
    ends = enumerate(ir.terminator(function).operands)
    kept = [(index, off[value]) for index, value in ends if value in off and _is_output(function, index)]
    return tuple(OutputError(index, found.bounds, found.unknown) for index, found in kept)


def _is_output(function: FuncOp, index: int) -> bool:
    return signature_kind(function, "res_attrs", index) != "state"


def _through(op: ValueOp, operands: list[_Off], rules: RuleSet, local: bool) -> _Off:
    """Return what is known of the results of an op."""
    if not any(operands) or not isinstance(op, AtenOp):
        return sum(operands, _Off())
    total, place = _Off(), f"{op.name} at {_place(op)}"
    for index, found in enumerate(operands):
        if not found or found.unknown is not None:
            total += found
            continue
        growth = math.nan if local else _growth(op, index, rules)
        before = op.call().operands[index].dtype
        made = tuple(meta.dtype for meta in op.metas if meta is not None)
        if math.isnan(growth):
            why = "is on shards; ask before localize" if local else "depends on other values than the error"
            total += _Off(unknown=f"how it grows in {place} {why}")
        elif lossy := next((after for after in made if not _is_bounded(before, after)), None):
            total += _Off(unknown=f"how it grows in {place} has no bound from {before} to {lossy}")
        else:
            coarse = next((after for after in made if _is_rounded(before, after)), None)
            total += found.grown(growth * (1 + EPSILON[coarse.real] if coarse else 1))
            total += _Off(((Rounding(before, coarse), _place(op), 1.0),)) if coarse else _Off()
    return total


def _is_bounded(before: DType, after: DType) -> bool:
    """Return whether values near each other stay so as they are converted: integers are truncated to, and wrap."""
    return after.is_inexact or after == before or (not before.is_inexact and after.itemsize > before.itemsize)


def _is_rounded(before: DType, after: DType) -> bool:
    return after.is_inexact and EPSILON[after.real] > EPSILON.get(before.real, 0.0)


def _place(op: ValueOp) -> str:
    """Return where an op is in its text, or the name of what it gives."""
    return str(location_of(op) or f"%{name_of(op.results[0])}")


def _growth(op: AtenOp, operand: int, rules: RuleSet) -> float:
    if op.name in GROWTH:
        return GROWTH[op.name](op, operand)
    rule = rules.instantiate(op.call())
    return 1.0 if rule is not None and any(rule.active("moves")) else math.nan


def _steps(op: Collective, mesh: Mesh) -> Iterator[_Off]:
    """Yield what `op` adds, if by it a value leaves a lossy placement."""
    meta = global_type(op.operands[0], mesh)
    if meta is None or not has_lossy(op.source):
        return
    where = _place(op)
    for error in step_errors(op.step(mesh), meta.shape, mesh):
        unknown = (
            f"no bound is declared from {error.before} to {error.after} at {where}" if error.bound is None else None
        )
        yield _Off(((error, where, 1.0),), unknown)
