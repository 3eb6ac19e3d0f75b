"""Measured times of ops and collectives, as a text table that overrides the model's.

    aten.mm f32[128,256] f32[256,512] = 12.3e-6
    aten.einsum f32[128,256] f32[512,256] {equation = "ab,cb->ac"} = 12.9e-6
    all_gather 8 ranks 1048576 bytes = 41e-6
    all_gather 16 ranks on 2 nodes 1048576 bytes = 96e-6

An op has the types of the operands that a rank has, those of lists one by one, and may have the literal arguments of
the program, all of them; without, a line is for any arguments that have no line of their own. A collective has the
ranks of its group, and the bytes that a rank sends.
"""

from __future__ import annotations

import bisect
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

import attrs

from spmdir.core.admission import why_not
from spmdir.core.dtype import DTYPES, unknown_dtype
from spmdir.core.errors import Location, ParseError, SpmdirError, did_you_mean, raise_all
from spmdir.core.placement.call import Call
from spmdir.core.placement.literals import LiteralError, parse_arguments, print_arguments
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.text_file import read_text_file
from spmdir.reshard.collectives import collectives

_COLLECTIVE = re.compile(r"(\w+) ([0-9]{1,9}) ranks(?: on ([0-9]{1,9}) nodes)? ([0-9]{1,18}) bytes", re.ASCII)
_OP = re.compile(r"([a-z_]\w*(?:\.\w+)+)((?: [^ \[\]]+\[(?:[0-9]{1,18}(?:,[0-9]{1,18})*)?\])*)( {[^{}]*})?", re.ASCII)
_LINE = re.compile(r"(.*?)(?:=([^={}]*))?")
_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_EXPECTED = "expected `aten.mm f32[128,256] f32[256,512] = 12.3e-6` or `all_gather 8 ranks 1048576 bytes = 41e-6`"

MOST_SECONDS = 1e6
"""The longest time that a table, or a latency of a topology, may have."""


@attrs.frozen
class CostLine:
    """One measurement.

    Attributes:
        what: the op with the types of its operands, or the collective.
        seconds: the time that it took.
        number: of the line in the file, from 1 on.
    """

    what: str
    seconds: float
    number: int = attrs.field(default=0, eq=False)

    def __str__(self) -> str:
        return f"{self.what} = {self.seconds:g}"


@attrs.frozen
class Measured:
    """A time, and the line or lines that it is from, as `costs.txt:3`."""

    seconds: float
    place: str


@attrs.frozen(slots=False, cache_hash=True)
class Costs:
    """The lines of a table; `str` gives its text.

    Attributes:
        file: where it is from.
        lines: in order.
    """

    file: str = attrs.field(eq=False)
    lines: tuple[CostLine, ...]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @cached_property
    def digest(self) -> str:
        """Return what tells the table from those with other times, in whatever order and layout its lines are."""
        lines = sorted(f"{line.what} = {line.seconds!r}" for line in self.lines)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]

    @cached_property
    def _ops(self) -> dict[str, CostLine]:
        return {line.what: line for line in self.lines if not _COLLECTIVE.fullmatch(line.what)}

    @cached_property
    def _collectives(self) -> dict[tuple[str, int, int], list[tuple[int, CostLine]]]:
        found: dict[tuple[str, int, int], list[tuple[int, CostLine]]] = {}
        for line in self.lines:
            if of := _COLLECTIVE.fullmatch(line.what):
                found.setdefault((of[1], int(of[2]), int(of[3] or 1)), []).append((int(of[4]), line))
        return {key: sorted(sizes, key=lambda size: size[0]) for key, sizes in found.items()}

    def op(self, name: str, operands: Sequence[TensorMeta], arguments: str = "{}") -> Measured | None:
        """Return the time of an op on operands of these local types; None if it was not measured.

        Args:
            arguments: the text of its literals, as `print_arguments` gives it.
        """
        text = op_text(name, operands) if self._ops else ""
        line = self._ops.get(f"{text} {arguments}") or self._ops.get(text)
        return Measured(line.seconds, f"{self.file}:{line.number}") if line is not None else None

    def unused(self, calls: Collection[Call], ranks: int, nodes: int) -> list[CostLine]:
        """Return the lines that can price nothing of a program, in any sharding.

        Those of an op need one of the same name, with as many operands of the same element types, and as large or
        larger in each dimension, and with the same arguments if they have some.

        Args:
            calls: of each op, on global operands.
            ranks, nodes: of the mesh.
        """
        found = []
        for line in self.lines:
            if of := _COLLECTIVE.fullmatch(line.what):
                is_used = ranks % int(of[2]) == 0 and int(of[3] or 1) <= nodes
            else:
                is_used = any(_may_price(line.what, call) for call in calls)
            found += [] if is_used else [line]
        return found

    def collective(
        self, name: str, ranks: int, nodes: int, sent: float, model: Callable[[float], float]
    ) -> Measured | None:
        """Return the time of a collective; None if none of its name was measured on such a group.

        It is on the line between the next smaller and the next larger size measured. Beyond them, it is that of the
        nearest, scaled as the model's times are.

        Args:
            sent: bytes that a rank sends.
            model: bytes → modelled seconds.
        """
        sizes = self._collectives.get((name, ranks, nodes))
        if not sizes:
            return None
        at = bisect.bisect_left(sizes, sent, key=lambda size: size[0])
        if at < len(sizes) and sizes[at][0] == sent:
            return Measured(sizes[at][1].seconds, f"{self.file}:{sizes[at][1].number}")
        if 0 < at < len(sizes):
            (low, first), (high, last) = sizes[at - 1], sizes[at]
            part = (sent - low) / (high - low)
            seconds = first.seconds + part * (last.seconds - first.seconds)
            return Measured(seconds, f"{self.file}:{first.number},{last.number}")
        size, line = sizes[min(at, len(sizes) - 1)]
        scale = model(sent) / model(size) if model(size) else 1.0
        return Measured(line.seconds * scale, f"{self.file}:{line.number}")


def _may_price(what: str, call: Call) -> bool:
    """Return whether a line could be of a call on shards of the operands of `call`."""
    op, _, arguments = what.partition(" {")
    name, *types = op.split(" ")
    if name != call.name or (arguments and "{" + arguments != print_arguments(call.arguments)):
        return False
    return len(types) == len(call.operands) and all(map(_is_shard, types, call.operands))


def _is_shard(type: str, operand: TensorMeta) -> bool:
    dtype, _, sizes = type.removesuffix("]").partition("[")
    shape = tuple(map(int, filter(None, sizes.split(","))))
    fits = len(shape) == operand.rank and all(own <= size for own, size in zip(shape, operand.shape, strict=True))
    return dtype == operand.dtype.name and fits


def op_text(name: str, operands: Iterable[TensorMeta]) -> str:
    """Return how a line calls an op on operands of these local types."""
    return " ".join([name, *(f"{meta.dtype.name}[{','.join(map(str, meta.shape))}]" for meta in operands)])


def read_costs(path: str) -> Costs:
    """Return the table in the file at `path`.

    Raises:
        ParseError, SpmdirErrors: it cannot be read, or lines are malformed; located.
    """
    return parse_costs(read_text_file(path, f"the costs {path}"), path)


def parse_costs(text: str, file: str) -> Costs:
    """Return the table that `text` is.

    Raises:
        ParseError, SpmdirErrors: lines are malformed; located.
    """
    lines: list[CostLine] = []
    errors: list[SpmdirError] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.partition("#")[0].strip()
        if not stripped:
            continue
        parts = _LINE.fullmatch(stripped)
        assert parts is not None
        head, brace, arguments = parts[1].strip().partition("{")
        what, seconds = " ".join([*head.split(), *([brace + arguments] if brace else [])]), (parts[2] or "").strip()
        try:
            what = _normalised(what)
            problem = _problem(what, seconds)
        except LiteralError as error:
            problem = f"{error} in the arguments of `{what}`"
        if problem is None and what in seen:
            problem = f"`{what}` has a time in line {seen[what]}; expected one"
        if problem is not None:
            errors.append(ParseError(problem, Location(file, number, len(raw) - len(raw.lstrip()) + 1)))
            continue
        seen[what] = number
        lines.append(CostLine(what, float(seconds), number))
    raise_all(errors)
    return Costs(file, tuple(lines))


def _normalised(what: str) -> str:
    """Return what a line measures in one spelling: no leading zeros, one node is not named, and arguments are sorted.

    Raises:
        LiteralError: its arguments are malformed.
    """
    if of := _COLLECTIVE.fullmatch(what):
        nodes = f" on {int(of[3])} nodes" if of[3] and int(of[3]) != 1 else ""
        return f"{of[1]} {int(of[2])} ranks{nodes} {int(of[4])} bytes"
    if op := _OP.fullmatch(what):
        arguments = f" {print_arguments(parse_arguments(op[3].strip()))}" if op[3] else ""
        return op[1] + re.sub(r"(?<=[\[,])0+(?=[0-9])", "", op[2]) + arguments
    return what


def _problem(what: str, seconds: str) -> str | None:
    """Return what is wrong with a line; None if nothing is."""
    if of := _COLLECTIVE.fullmatch(what):
        names = [spec.name for spec in collectives()]
        if of[1] not in names:
            return f"unknown collective '{of[1]}'; expected one of {', '.join(names)}{did_you_mean(of[1], names)}"
        if not int(of[3] or 1) or int(of[2]) <= 1 or int(of[2]) % int(of[3] or 1):
            return f"found {of[2]} ranks on {of[3] or 1} nodes; expected several ranks, as many on each node"
    elif op := _OP.fullmatch(what):
        if (reason := why_not(op[1])) is not None:
            return f"'{op[1]}' {reason}"
        types = [type.partition("[")[0] for type in op[2].split()]
        if unknown := [type for type in types if type not in DTYPES]:
            return unknown_dtype(unknown[0])
    else:
        return f"found '{what}'; {_EXPECTED}"
    if _SECONDS.fullmatch(seconds) and 0 < float(seconds) <= MOST_SECONDS:
        return None
    return f"found '{seconds}' for the time of `{what}`; expected seconds, above 0 and at most {MOST_SECONDS:g}"
