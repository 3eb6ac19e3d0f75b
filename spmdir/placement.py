"""Placements: how one mesh axis holds a tensor.

A placement declares its text form, its trait and its reference semantics (`distribute`, `collect`) on plain
tensors. Tensors are used by their methods alone, so this module needs no tensor library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.errors import ParseError, ShardingError


def chunk(size: int, count: int, index: int) -> tuple[int, int]:
    """Offset and length of piece `index` of `size` elements in `count` pieces, as `torch.chunk` cuts them.

    Every piece has ceil(size / count) elements until the elements run out; later pieces are shorter or empty.
    """
    step = -(-size // count)
    offset = min(index * step, size)
    return offset, min(step, size - offset)


class Placement:
    """How the ranks along one mesh axis hold a tensor.

    Attributes:
        trait: "replicated" (every rank holds the value), "shard" (each rank holds a piece of `dim`),
            "partial" (the value is the reduction of what the ranks hold) or "open" (left to the compiler).
        dim: the tensor dimension that is divided, for the trait "shard".
        op: the pending reduction, for the trait "partial".
    """

    trait: ClassVar[str]
    dim: int | None = None
    op: str | None = None

    def distribute(self, tensor: Any, count: int, noise: Callable[[Any], Any]) -> list[Any]:
        """What each of `count` ranks holds of `tensor`; `noise(t)` gives random values shaped like `t`."""
        raise NotImplementedError

    def collect(self, pieces: Sequence[Any]) -> Any:
        """The tensor that the ranks together hold: the inverse of `distribute`."""
        raise NotImplementedError


@attrs.frozen(cache_hash=True)
class Replicate(Placement):
    """`R`: every rank holds the whole value."""

    trait: ClassVar[str] = "replicated"

    def distribute(self, tensor: Any, count: int, noise: Callable[[Any], Any]) -> list[Any]:
        return [tensor.clone() for _ in range(count)]

    def collect(self, pieces: Sequence[Any]) -> Any:
        return pieces[0]

    def __str__(self) -> str:
        return "R"


def _from_zero(_: Any, __: Any, dim: int) -> None:
    if dim < 0:
        raise ShardingError(f"S({dim}) divides no dimension; expected one counted from 0")


@attrs.frozen(cache_hash=True)
class Shard(Placement):
    """`S(d)`: rank i holds piece i of dimension d, cut as `torch.chunk` cuts."""

    trait: ClassVar[str] = "shard"
    dim: int = attrs.field(validator=_from_zero)

    def distribute(self, tensor: Any, count: int, noise: Callable[[Any], Any]) -> list[Any]:
        cuts = [chunk(tensor.shape[self.dim], count, index) for index in range(count)]
        return [tensor.narrow(self.dim, offset, length).clone() for offset, length in cuts]

    def collect(self, pieces: Sequence[Any]) -> Any:
        shape = list(pieces[0].shape)
        shape[self.dim] = sum(piece.shape[self.dim] for piece in pieces)
        whole, offset = pieces[0].new_empty(shape), 0
        for piece in pieces:
            whole.narrow(self.dim, offset, piece.shape[self.dim]).copy_(piece)
            offset += piece.shape[self.dim]
        return whole

    def __str__(self) -> str:
        return f"S({self.dim})"


@attrs.frozen
class Reduction:
    """A pending reduction kind: how two values combine, and what noise hides a value among ranks.

    Attributes:
        combine: (a, b) → the reduction of both.
        linear: sums of such values are such values (sum, avg).
        scatter: (value, noise) → (value of one rank, value of another) whose reduction is `value`.
    """

    combine: Callable[[Any, Any], Any]
    linear: bool
    scatter: Callable[[Any, Any], tuple[Any, Any]]


def _maximum(a: Any, b: Any) -> Any:
    return a.maximum(b)


def _minimum(a: Any, b: Any) -> Any:
    return a.minimum(b)


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(lambda a, b: a + b, True, lambda value, noise: (noise, value - noise)),
    "avg": Reduction(lambda a, b: a + b, True, lambda value, noise: (noise, value - noise)),
    "max": Reduction(_maximum, False, lambda value, noise: (value.minimum(value - abs(noise)), value)),
    "min": Reduction(_minimum, False, lambda value, noise: (value.maximum(value + abs(noise)), value)),
    "product": Reduction(lambda a, b: a * b, False, lambda value, noise: (noise * 0 + 1, value)),
    "any": Reduction(lambda a, b: a | b, False, lambda value, noise: (value & (noise > 0), value)),
    "all": Reduction(lambda a, b: a & b, False, lambda value, noise: (value | (noise > 0), value)),
}


def _reduction_name(_: Any, __: Any, value: str) -> None:
    if value not in REDUCTIONS:
        raise ShardingError(f"unknown reduction '{value}' in P({value}); expected one of {', '.join(REDUCTIONS)}")


@attrs.frozen(cache_hash=True)
class Partial(Placement):
    """`P(op)`: the value is the op-reduction over the ranks of what they hold."""

    trait: ClassVar[str] = "partial"
    op: str = attrs.field(default="sum", validator=_reduction_name)

    def distribute(self, tensor: Any, count: int, noise: Callable[[Any], Any]) -> list[Any]:
        reduction = REDUCTIONS[self.op]
        pieces, rest = [], tensor * count if self.op == "avg" else tensor
        for _ in range(count - 1):
            piece, rest = reduction.scatter(rest, noise(tensor))
            pieces.append(piece)
        return [*pieces, rest]

    def collect(self, pieces: Sequence[Any]) -> Any:
        whole = pieces[0]
        for piece in pieces[1:]:
            whole = REDUCTIONS[self.op].combine(whole, piece)
        return whole / len(pieces) if self.op == "avg" else whole

    def __str__(self) -> str:
        return f"P({self.op})"


@attrs.frozen(cache_hash=True)
class Open(Placement):
    """`?`: left to the compiler; only on inputs and constraints, before propagation."""

    trait: ClassVar[str] = "open"

    def __str__(self) -> str:
        return "?"


R = Replicate()
OPEN = Open()

_TEXT = re.compile(r"\s*([A-Za-z_]\w*|\?)\s*(?:\(\s*(-?\w+)\s*\))?\s*\Z")


def parse_placement(text: str) -> Placement:
    """`R`, `S(0)`, `P`, `P(sum)` or `?` → its placement.

    Raises:
        ParseError: the text is no placement.
    """
    match = _TEXT.match(text)
    name, argument = match.groups() if match else (None, None)
    if name == "R" and argument is None:
        return R
    if name == "?" and argument is None:
        return OPEN
    if name == "S" and argument is not None and argument.isdecimal():
        return Shard(int(argument))
    if name == "P" and (argument is None or argument in REDUCTIONS):
        return Partial(argument or "sum")
    raise ParseError(
        f"unknown placement '{text.strip()}'; expected R, S(dim), ? or P(op) with op one of {', '.join(REDUCTIONS)}"
    )
