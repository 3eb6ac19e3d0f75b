"""How far the results of a program may be off by its inexact steps: declared bounds, followed through the ops after.

A bound is of the largest absolute element. It is followed through ops that let an error grow by a known factor, as data
movement and sums of operands do; past others, such as a product with another tensor, no bound is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.collectives import Collective
from spmdir.dialects.names import name_of
from spmdir.dialects.reshard_ops import is_inexact
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, signature_kind
from spmdir.dialects.verification import is_local
from spmdir.reshard.step_errors import StepError, step_errors
from spmdir.rules import RuleSet

Growth = Callable[[AtenOp, int], float]
"""(op, operand) → by how much the largest absolute error of the operand may grow in the result."""


def _scaled_by(name: str) -> Growth:
    def growth(op: AtenOp, operand: int) -> float:
        scale = op.argument.get(name, 1)
        return abs(scale) if isinstance(scale, (int, float)) and operand == len(op.tensors) - 1 else 1.0

    return growth


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
    "abs", "add.Scalar", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "cos", "leaky_relu", "max",
    "maximum", "mean", "mean.dim", "min", "minimum", "neg", "relu", "rsub.Scalar", "sigmoid", "sin", "stack",
    "sub.Scalar", "tanh", "_to_copy", "slice.Tensor", "select.int", "flip", "roll", "tril", "triu",
)  # fmt: skip

GROWTH: Mapping[str, Growth] = {
    **{f"aten.{name}": lambda op, operand: 1.0 for name in _KEEPS},
    "aten.add.Tensor": _scaled_by("alpha"),
    "aten.sub.Tensor": _scaled_by("alpha"),
    "aten.sum": _added,
    "aten.sum.dim_IntList": _added,
    "aten.mul.Tensor": _factor,
    "aten.mul.Scalar": _factor,
    "aten.div.Tensor": _divisor,
    "aten.div.Scalar": _divisor,
}
"""Op → by how much an error may grow in it, NaN where that is not known; data movement keeps it."""


Bounds = tuple[tuple[StepError, str, float], ...]
"""(error of a step, its place, by how much it may have grown), whose sum bounds the largest error of an element."""


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
    """Return how far each result of a function may be off that inexact steps have a part in."""
    off: dict[SSAValue, _Off] = {}
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp):
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
        if math.isnan(growth):
            why = "is on shards; ask before localize" if local else "depends on other values than the error"
            total += _Off(unknown=f"how it grows in {place} {why}")
        else:
            total += found.grown(growth)
    return total


def _place(op: ValueOp) -> str:
    """Return where an op is in its text, or the name of what it gives."""
    return str(location_of(op) or f"%{name_of(op.results[0])}")


def _growth(op: AtenOp, operand: int, rules: RuleSet) -> float:
    if op.name in GROWTH:
        return GROWTH[op.name](op, operand)
    rule = rules.instantiate(op.call())
    return 1.0 if rule is not None and any(rule.active("moves")) else math.nan


def _steps(op: Collective, mesh: Mesh) -> Iterator[_Off]:
    """Yield what `op` adds, if by it a value leaves an inexact placement."""
    meta = global_type(op.operands[0], mesh)
    if meta is None or not is_inexact(op.source):
        return
    where = _place(op)
    for error in step_errors(op.step(mesh), meta.shape, mesh):
        unknown = (
            f"no bound is declared from {error.before} to {error.after} at {where}" if error.bound is None else None
        )
        yield _Off(((error, where, 1.0),), unknown)
