"""Bound the errors of the results of a program, from the declared bounds of its lossy steps.

Errors are absolute errors of the largest element. Some ops let an error grow by a known factor, such as data movement
(1) and the sum of n elements (n). Other ops, such as the product with another tensor, have no known factor, so their
results have no bound. Rounding in arithmetic does not count. Rounding in conversions to types of fewer digits counts,
for values in the range of the type.

For example, a step with the error bound e precedes `%b = aten.mul.Scalar(%a) {other = 3}` and `%c = aten.sum(%b)` over
8 elements. The bound is 3e for %b, and 24e for %c.
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
"""(op, index of an operand) → the largest factor from an error of this operand to the error of the result."""


def _scale_by_alpha(op: AtenOp, operand: int) -> float:
    """Return the factor of an operand of `self + alpha · other`: |alpha| for `other`, and 1 for `self`."""
    # `other` is the last tensor operand, unless it is a number.
    is_other = "other" not in op.argument and operand == len(op.tensors) - 1
    return _magnitude(op.argument.get("alpha", 1)) if is_other else 1.0


def _scale_self_by_alpha(op: AtenOp, operand: int) -> float:
    """Return the factor of `self` in `other - alpha · self`."""
    return _magnitude(op.argument.get("alpha", 1))


def _largest_slope(op: AtenOp, operand: int) -> float:
    """Return the largest slope of a leaky ReLU."""
    return max(1.0, _magnitude(op.argument.get("negative_slope", 0.01)))


def _magnitude(number: object) -> float:
    """Return the absolute value of a number; NaN if it is not known."""
    return abs(number) if isinstance(number, (int, float)) else math.nan


def _terms_per_result(op: AtenOp, operand: int) -> float:
    """Return how many elements of the operand each element of the result sums."""
    summed, result = op.call().operands[operand], op.metas[0]
    return summed.numel / max(result.numel, 1) if result is not None else math.inf


def _multiplier(op: AtenOp, operand: int) -> float:
    """Return the absolute value of the number `other`; NaN if `other` is a tensor or symbolic."""
    scale = op.argument.get("other")
    return abs(scale) if isinstance(scale, (int, float)) and len(op.tensors) == 1 else math.nan


def _inverse_of_divisor(op: AtenOp, operand: int) -> float:
    """Return the inverse of the absolute value of the divisor `other`; NaN if it is not a number, or 0."""
    divisor = _multiplier(op, operand)
    return 1 / divisor if divisor else math.nan


_ERROR_PRESERVING = (
    "abs", "add.Scalar", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "cos", "max",
    "maximum", "mean", "mean.dim", "min", "minimum", "neg", "relu", "sigmoid", "sin", "stack",
    "sub.Scalar", "tanh", "_to_copy", "slice.Tensor", "select.int", "flip", "roll", "tril", "triu",
)  # fmt: skip

GROWTH: Mapping[str, Growth] = {
    **{f"aten.{name}": lambda op, operand: 1.0 for name in _ERROR_PRESERVING},
    "aten.add.Tensor": _scale_by_alpha,
    "aten.sub.Tensor": _scale_by_alpha,
    "aten.rsub.Scalar": _scale_self_by_alpha,
    "aten.leaky_relu": _largest_slope,
    "aten.sum": _terms_per_result,
    "aten.sum.dim_IntList": _terms_per_result,
    "aten.mul.Tensor": _multiplier,
    "aten.mul.Scalar": _multiplier,
    "aten.div.Tensor": _inverse_of_divisor,
    "aten.div.Scalar": _inverse_of_divisor,
}
"""Op → the growth of an error, NaN if unknown. Other ops have a growth of 1 if their rules mark data movement."""


EPSILON: Mapping[DType, float] = {
    F64: 2.0**-52,
    F32: 2.0**-23,
    F16: 2.0**-10,
    BF16: 2.0**-7,
    F8E4M3FN: 2.0**-3,
    F8E5M2: 2.0**-2,
}
"""Type → twice its unit roundoff, since two nearby values may be rounded in opposite directions."""


@attrs.frozen
class Rounding:
    """The error that a conversion to a type of fewer digits adds.

    Attributes:
        before, after: the element types.
    """

    before: DType
    after: DType

    def text(self, growth: float = 1.0) -> str:
        """Return the bound, `growth` times as large."""
        return f"at most {EPSILON[self.after.real] * growth:.3g} of the largest absolute element (max)"


Bounds = tuple[tuple[StepError | Rounding, str, float], ...]
"""(source of an error, its location, its growth since). The sum of all of them bounds the error of each element."""


@attrs.frozen
class OutputError:
    """The error bound of a result of a program.

    Attributes:
        result: the index of the result.
        bounds: the contributions of the lossy steps.
        unknown: the reason why no bound is known; None if there is one.
    """

    result: int
    bounds: Bounds
    unknown: str | None

    def __str__(self) -> str:
        if self.unknown is not None:
            return f"result {self.result}: error unknown: {self.unknown}"
        terms = []
        for step, where, growth in self.bounds:
            terms.append(f"{step.text(growth)}, from {step.before} to {step.after} at {where}")
        return f"result {self.result}: error {' + '.join(terms)}"


@attrs.frozen
class _AccumulatedError:
    """The error of a value: the contributions of lossy steps so far, or the reason why no bound is known."""

    bounds: Bounds = ()
    unknown: str | None = None

    def scale(self, factor: float) -> _AccumulatedError:
        """Return the error `factor` times as large."""
        return attrs.evolve(self, bounds=tuple((step, where, growth * factor) for step, where, growth in self.bounds))

    def __add__(self, error: _AccumulatedError) -> _AccumulatedError:
        return _AccumulatedError((*self.bounds, *error.bounds), self.unknown or error.unknown)

    def __bool__(self) -> bool:
        return bool(self.bounds) or self.unknown is not None


def output_errors(function: FuncOp, mesh: Mesh, rules: RuleSet) -> tuple[OutputError, ...]:
    """Return the error bound of each result of a function that depends on lossy steps. Edge states are left out."""
    errors: dict[SSAValue, _AccumulatedError] = {}
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp):
            continue
        if isinstance(op, SpmdOp) and len(op.pairs) > 1:  # buckets and their waits are exact
            errors.update((result, errors[value]) for value, result in op.pairs if value in errors)
            continue
        operand_errors = [errors.get(value, _AccumulatedError()) for value in op.operands]
        error = _propagate(op, operand_errors, rules, is_local(function))
        if isinstance(op, Collective):
            error = sum(_step_contributions(op, mesh), error)
        errors.update((result, error) for result in op.results if error)
    inexact_outputs = []
    for index, value in enumerate(ir.terminator(function).operands):
        if value in errors and _is_output(function, index):
            inexact_outputs.append(OutputError(index, errors[value].bounds, errors[value].unknown))
    return tuple(inexact_outputs)


def _is_output(function: FuncOp, index: int) -> bool:
    """Return whether a result of the function is one of the program, and not the new value of an edge state."""
    return signature_kind(function, "res_attrs", index) != "state"


def _propagate(op: ValueOp, operands: list[_AccumulatedError], rules: RuleSet, local: bool) -> _AccumulatedError:
    """Return the error of the results of an op: the sum of the operands' errors, each times its growth in the op.

    The error is unknown if the growth is, or if a conversion to an integer type has no bound. A conversion to a type of
    fewer digits adds its rounding error. For an op of `spmd`, the error is the sum of the operands' errors.

    Args:
        local: whether the program is local. Then the growth of a torch op is unknown.
    """
    if not any(operands) or not isinstance(op, AtenOp):
        return sum(operands, _AccumulatedError())
    total, op_text = _AccumulatedError(), f"{op.name} at {_place_text(op)}"
    for index, error in enumerate(operands):
        if not error or error.unknown is not None:
            total += error
            continue
        growth = math.nan if local else _growth(op, index, rules)
        before = op.call().operands[index].dtype
        result_dtypes = tuple(meta.dtype for meta in op.metas if meta is not None)
        if math.isnan(growth):
            reason = "depends on the values of operands"
            if local:
                reason = "is unknown for the op on shards: report the program before localize"
            total += _AccumulatedError(unknown=f"the growth of the error in {op_text} {reason}")
            continue
        unbounded_dtypes = [after for after in result_dtypes if not _is_bounded(before, after)]
        if unbounded_dtypes:
            conversion = f"from {before} to {unbounded_dtypes[0]}"
            total += _AccumulatedError(
                unknown=f"no limit is known for the growth of the error in {op_text} {conversion}"
            )
            continue
        coarser_dtypes = [after for after in result_dtypes if _is_rounded(before, after)]
        if not coarser_dtypes:
            total += error.scale(growth)
            continue
        # The conversion rounds the element with its error, so the error grows by the rounding, too.
        coarser_dtype = coarser_dtypes[0]
        total += error.scale(growth * (1 + EPSILON[coarser_dtype.real]))
        total += _AccumulatedError(((Rounding(before, coarser_dtype), _place_text(op), 1.0),))
    return total


def _is_bounded(before: DType, after: DType) -> bool:
    """Return whether a conversion keeps nearby values near each other.

    A conversion to a narrower integer type may wrap, and one from a float to an integer truncates: neither does.
    """
    return after.is_inexact or after == before or (not before.is_inexact and after.itemsize > before.itemsize)


def _is_rounded(before: DType, after: DType) -> bool:
    """Return whether a conversion of the element type loses precision."""
    return after.is_inexact and EPSILON[after.real] > EPSILON.get(before.real, 0.0)


def _place_text(op: ValueOp) -> str:
    """Return the location of an op in its text, else the name of its first result."""
    return str(location_of(op) or f"%{name_of(op.results[0])}")


def _growth(op: AtenOp, operand: int, rules: RuleSet) -> float:
    """Return by what factor the op can enlarge an error of the operand; NaN if it is not known."""
    if op.name in GROWTH:
        return GROWTH[op.name](op, operand)
    rule = rules.instantiate(op.call())
    return 1.0 if rule is not None and any(rule.active("moves")) else math.nan


def _step_contributions(op: Collective, mesh: Mesh) -> Iterator[_AccumulatedError]:
    """Yield the errors of the steps of a collective that converts a value from a lossy placement."""
    meta = global_type(op.operands[0], mesh)
    if meta is None or not has_lossy(op.source):
        return
    place = _place_text(op)
    for error in step_errors(op.step(mesh), meta.shape, mesh):
        unknown = (
            f"the step from {error.before} to {error.after} at {place} declares no error bound"
            if error.bound is None
            else None
        )
        yield _AccumulatedError(((error, place, 1.0),), unknown)
