"""Element types of results."""

from __future__ import annotations

from spmdir.call import TensorMeta
from spmdir.rules.binding import Binding

RANKING = ("i1", "ui8", "i8", "i16", "i32", "i64", "bf16", "f16", "f32", "f64")
"""Element types, each promoted to a later one of its category or of a higher one."""


def result_dtype(declared: str | None, binding: Binding, operands: tuple[TensorMeta, ...]) -> str:
    """What `declared` (the name after `as`) means for a call; without it, the operands' promoted type.

    An op without operands has the type of its first number, as torch's factories do.
    """
    if declared in RANKING:
        return declared
    if declared and binding.operands(declared):
        return operands[binding.operands(declared)[0]].dtype
    if declared and binding.arguments.get(declared) is not None:
        return str(binding.arguments[declared])
    if not operands:
        literal = next((v for v in binding.arguments.values() if isinstance(v, (bool, int, float))), 0.0)
        return "i1" if isinstance(literal, bool) else "i64" if isinstance(literal, int) else "f32"
    numbers = [v for name, v in binding.arguments.items() if name in binding.tensors and v is not None]
    return promote(operands, any(isinstance(v, float) for v in numbers))


def promote(operands: tuple[TensorMeta, ...], float_number: bool) -> str:
    """The element type of an elementwise op, as torch promotes: tensors of rank 0 count only in a higher category."""

    def category(dtype: str) -> int:
        return 2 if dtype[0] in "fb" else int(dtype != "i1")

    with_dims = [m.dtype for m in operands if m.rank] or [m.dtype for m in operands]
    highest = max(map(category, with_dims))
    candidates = with_dims + [m.dtype for m in operands if category(m.dtype) > highest]
    if {"bf16", "f16"} <= set(candidates):
        return "f32"
    best = max(candidates, key=RANKING.index)
    return "f32" if float_number and category(best) < 2 else best
