"""Measured times of ops and collectives, as a text table that overrides modelled times.

    aten.mm f32[128,256] f32[256,512] = 12.3e-6
    aten.einsum f32[128,256] f32[512,256] {equation = "ab,cb->ac"} = 12.9e-6
    all_gather 8 ranks 1048576 bytes = 41e-6
    all_gather 16 ranks on 2 nodes 1048576 bytes = 96e-6

The line of an op has the local types of its operands; operands in lists follow one by one. It may also have all literal
arguments of the call. A line without arguments applies to all calls whose arguments have no separate line. The line of
a collective has the number of ranks in its group, and the bytes that a rank sends.
"""

from __future__ import annotations

import bisect
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

import attrs

from spmdir.core.admitted_ops import why_not
from spmdir.core.dtype import DTYPES, unknown_dtype
from spmdir.core.errors import Location, ParseError, SpmdirError, did_you_mean, raise_all
from spmdir.core.placement.call import Call
from spmdir.core.placement.literals import LiteralError, parse_arguments, print_arguments
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.text_file import read_text_file
from spmdir.reshard.collectives import collectives

# The part of a line before `=`: of a collective with its groups, of an op with its types and arguments. Then a whole
# line, and its seconds.
_COLLECTIVE = re.compile(r"(\w+) ([0-9]{1,9}) ranks(?: on ([0-9]{1,9}) nodes)? ([0-9]{1,18}) bytes", re.ASCII)
_OP = re.compile(r"([a-z_]\w*(?:\.\w+)+)((?: [^ \[\]]+\[(?:[0-9]{1,18}(?:,[0-9]{1,18})*)?\])*)( {[^{}]*})?", re.ASCII)
_LINE = re.compile(r"(.*?)(?:=([^={}]*))?")
_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_EXPECTED = "expected `aten.mm f32[128,256] f32[256,512] = 12.3e-6` or `all_gather 8 ranks 1048576 bytes = 41e-6`"

MOST_SECONDS = 1e6
"""The largest time in seconds in a table, and the largest latency of a topology."""


@attrs.frozen
class CostLine:
    """One measurement.

    Attributes:
        entry: the op with the types of its operands, or the collective.
        seconds: the measured time.
        number: the number of the line in the file, from 1 on.
    """

    entry: str
    seconds: float
    number: int = attrs.field(default=0, eq=False)

    def __str__(self) -> str:
        return f"{self.entry} = {self.seconds:g}"


@attrs.frozen
class Measured:
    """A time and its lines in the file, such as `costs.txt:3`."""

    seconds: float
    place: str


@attrs.frozen(slots=False, cache_hash=True)
class Costs:
    """A table of measured times, which replace modelled costs; `str` returns its text.

    Attributes:
        file: the path of the file.
        lines: in the order of the file.
    """

    file: str = attrs.field(eq=False)
    lines: tuple[CostLine, ...]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @cached_property
    def digest(self) -> str:
        """Return a digest of the measurements, independent of the order and layout of the lines."""
        lines = sorted(f"{line.entry} = {line.seconds!r}" for line in self.lines)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]

    @cached_property
    def _ops(self) -> dict[str, CostLine]:
        """Return the text of an op → its line."""
        return {line.entry: line for line in self.lines if not _COLLECTIVE.fullmatch(line.entry)}

    @cached_property
    def _collectives(self) -> dict[tuple[str, int, int], list[tuple[int, CostLine]]]:
        """Return (collective, ranks, nodes) → (bytes that a rank sends, line) pairs, by ascending bytes."""
        by_group: dict[tuple[str, int, int], list[tuple[int, CostLine]]] = {}
        for line in self.lines:
            if match := _COLLECTIVE.fullmatch(line.entry):
                by_group.setdefault((match[1], int(match[2]), int(match[3] or 1)), []).append((int(match[4]), line))
        return {key: sorted(sizes, key=lambda size: size[0]) for key, sizes in by_group.items()}

    def op(self, name: str, operands: Sequence[TensorMeta], arguments: str = "{}") -> Measured | None:
        """Return the time of an op on operands of these local types; None if it was not measured.

        A line with equal arguments counts before a line without arguments.

        Args:
            arguments: the text of its literals, from `print_arguments`.
        """
        text = op_text(name, operands) if self._ops else ""
        line = self._ops.get(f"{text} {arguments}") or self._ops.get(text)
        return Measured(line.seconds, f"{self.file}:{line.number}") if line is not None else None

    def unused(self, calls: Collection[Call], ranks: int, nodes: int) -> list[CostLine]:
        """Return the lines that no sharding of a program can use.

        The line of an op matches a call of the same op with the same number of operands and the same element types.
        Each dimension of the call is at least as large. If the line has arguments, they are equal. The line of a
        collective is usable if its group divides the ranks and spans at most as many nodes.

        Args:
            calls: the calls of the program, on global operands.
            ranks, nodes: the numbers of ranks and nodes of the mesh.
        """
        unused_lines = []
        for line in self.lines:
            if match := _COLLECTIVE.fullmatch(line.entry):
                is_used = ranks % int(match[2]) == 0 and int(match[3] or 1) <= nodes
            else:
                is_used = any(_may_price(line.entry, call) for call in calls)
            if not is_used:
                unused_lines.append(line)
        return unused_lines

    def collective(
        self, name: str, ranks: int, nodes: int, sent: float, model: Callable[[float], float]
    ) -> Measured | None:
        """Return the time of a collective; None if it was not measured on a group of this size.

        The time is interpolated linearly between the next smaller and the next larger measured size. Outside the
        measured sizes, it is the time of the nearest size, scaled by the ratio of modelled times.

        Args:
            sent: bytes that a rank sends.
            model: bytes → modelled seconds.
        """
        sizes = self._collectives.get((name, ranks, nodes))  # (bytes, line) pairs, by ascending bytes
        if not sizes:
            return None
        index = bisect.bisect_left(sizes, sent, key=lambda size: size[0])
        if index < len(sizes) and sizes[index][0] == sent:
            return Measured(sizes[index][1].seconds, f"{self.file}:{sizes[index][1].number}")
        if 0 < index < len(sizes):
            (low, low_line), (high, high_line) = sizes[index - 1], sizes[index]
            fraction = (sent - low) / (high - low)
            seconds = low_line.seconds + fraction * (high_line.seconds - low_line.seconds)
            return Measured(seconds, f"{self.file}:{low_line.number},{high_line.number}")
        size, line = sizes[min(index, len(sizes) - 1)]
        scale = model(sent) / model(size) if model(size) else 1.0
        return Measured(line.seconds * scale, f"{self.file}:{line.number}")


def _may_price(entry: str, call: Call) -> bool:
    """Return whether a line may be the measurement of `call` on shards of its operands."""
    op, _, arguments = entry.partition(" {")  # `arguments` lacks its first brace
    name, *types = op.split(" ")
    if name != call.name or (arguments and "{" + arguments != print_arguments(call.arguments)):
        return False
    return len(types) == len(call.operands) and all(map(_is_shard, types, call.operands))


def _is_shard(type: str, operand: TensorMeta) -> bool:
    """Return whether a type such as `f32[128,256]` may be that of a shard of `operand`: no dimension is larger."""
    dtype, _, sizes = type.removesuffix("]").partition("[")
    shape = tuple(map(int, filter(None, sizes.split(","))))
    fits = len(shape) == operand.rank and all(
        local_size <= size for local_size, size in zip(shape, operand.shape, strict=True)
    )
    return dtype == operand.dtype.name and fits


def op_text(name: str, operands: Iterable[TensorMeta]) -> str:
    """Return the text of an op on operands of these local types in a line."""
    return " ".join([name, *(f"{meta.dtype.name}[{','.join(map(str, meta.shape))}]" for meta in operands)])


def read_costs(path: str) -> Costs:
    """Read the table of measured times of ops and collectives in the file at `path`.

    Raises:
        ParseError, SpmdirErrors: the file cannot be read, or lines are malformed; located.
    """
    return parse_costs(read_text_file(path, f"the costs {path}"), path)


def parse_costs(text: str, file: str) -> Costs:
    """Parse the text of a table. Empty lines are skipped, as is the part of a line from `#` on.

    Args:
        file: the name for locations.

    Raises:
        ParseError, SpmdirErrors: lines are malformed, or two lines have one entry; located.
    """
    lines: list[CostLine] = []
    errors: list[SpmdirError] = []
    line_of: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.partition("#")[0].strip()
        if not stripped:
            continue
        parts = _LINE.fullmatch(stripped)  # [1] before and [2] after `=`
        assert parts is not None
        # Words are separated by one space each, but spaces in arguments are kept.
        head, brace, arguments = parts[1].strip().partition("{")
        words = [*head.split(), *([brace + arguments] if brace else [])]
        entry, seconds = " ".join(words), (parts[2] or "").strip()
        try:
            entry = _normalise(entry)
            problem = _find_problem(entry, seconds)
        except LiteralError as error:
            problem = f"{error} in the arguments of `{entry}`"
        if problem is None and entry in line_of:
            problem = f"`{entry}` already has a time in line {line_of[entry]}; remove one of the two lines"
        if problem is not None:
            errors.append(ParseError(problem, Location(file, number, len(raw) - len(raw.lstrip()) + 1)))
            continue
        line_of[entry] = number
        lines.append(CostLine(entry, float(seconds), number))
    raise_all(errors)
    return Costs(file, tuple(lines))


def _normalise(entry: str) -> str:
    """Return the text of an op or collective in canonical form: no leading zeros, no `on 1 nodes`, sorted arguments.

    Raises:
        LiteralError: the arguments are malformed.
    """
    if match := _COLLECTIVE.fullmatch(entry):
        nodes = f" on {int(match[3])} nodes" if match[3] and int(match[3]) != 1 else ""
        return f"{match[1]} {int(match[2])} ranks{nodes} {int(match[4])} bytes"
    if op_match := _OP.fullmatch(entry):
        arguments = f" {print_arguments(parse_arguments(op_match[3].strip()))}" if op_match[3] else ""
        return op_match[1] + re.sub(r"(?<=[\[,])0+(?=[0-9])", "", op_match[2]) + arguments
    return entry


def _find_problem(entry: str, seconds: str) -> str | None:
    """Return an error message for a line; None if the line is valid.

    Args:
        entry: the part before `=`, normalised.
        seconds: the part after `=`.
    """
    if match := _COLLECTIVE.fullmatch(entry):
        names = [spec.name for spec in collectives()]
        if match[1] not in names:
            return f"unknown collective '{match[1]}'; expected one of {', '.join(names)}{did_you_mean(match[1], names)}"
        ranks, nodes = int(match[2]), int(match[3] or 1)
        if not nodes or ranks <= 1 or ranks % nodes:
            return (
                f"found {match[2]} ranks on {match[3] or 1} nodes; expected at least 2 ranks, a multiple of the nodes"
            )
    elif op_match := _OP.fullmatch(entry):
        if (reason := why_not(op_match[1])) is not None:
            return f"'{op_match[1]}' {reason}"
        types = [type.partition("[")[0] for type in op_match[2].split()]
        if unknown := [type for type in types if type not in DTYPES]:
            return unknown_dtype(unknown[0])
    else:
        return f"found '{entry}'; {_EXPECTED}"
    if _SECONDS.fullmatch(seconds) and 0 < float(seconds) <= MOST_SECONDS:
        return None
    return f"found '{seconds}' for the time of `{entry}`; expected seconds, above 0 and at most {MOST_SECONDS:g}"
