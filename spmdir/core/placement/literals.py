"""The text of literal arguments: `{dim = [1, 2], dtype = f32, eps = 1.0e-05, size = [size(10, dp), 64]}`.

Literals are numbers, `true`/`false`, strings, `none`, lists, element types and per-rank integers. To distinguish 1.0
from 1, a float always has a `.` or an exponent, or is `inf` or `nan`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache

import attrs

from spmdir.core.axes import is_axis
from spmdir.core.brackets import split_entries
from spmdir.core.causal_blocks import PRECEDENCE
from spmdir.core.dtype import DTYPES
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import parse_placement
from spmdir.core.placement.call import Literal, Local, SizeOperand
from spmdir.core.placement.shards import ShardPlacement

_KINDS = "|".join(("size", "offset", "end", "shard", *PRECEDENCE))
_TOKEN = re.compile(
    rf"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<complex>complex\([^()]*\))
  | (?P<local>(?:{_KINDS})\((?:[^()]|\([^()]*\))*\)(?:\s*\*\s*-?[0-9]+)?(?:\s*[+-]\s*[0-9]+)?)
  | (?P<float>-?(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|inf\b|nan\b))
  | (?P<int>-?[0-9]+)
  | (?P<operand>%[0-9]+)
  | (?P<word>[A-Za-z_]\w*(?:<\w+>)?)
  | (?P<punctuation>[\[\]{{}}=,])
    )""",
    re.VERBOSE,
)
_LOCAL = re.compile(r"(\w+)\(((?:[^()]|\([^()]*\))*)\)(?:\s*\*\s*(-?[0-9]+))?(?:\s*([+-])\s*([0-9]+))?")
_WORDS: dict[str, Literal] = {"true": True, "false": False, "none": None, **DTYPES}


class LiteralError(ValueError):
    """Malformed literal text.

    Attributes:
        offset: the offset of the error in the text.
    """

    def __init__(self, message: str, offset: int):
        super().__init__(message)
        self.offset = offset


def print_literal(value: Literal) -> str:
    """Return the canonical text of one literal, as the module describes it.

    A float has a point or an exponent, to differ from an integer: 1e20 is `1.0e+20`.
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(print_literal, value)) + "]"
    return str(value)


def print_arguments(arguments: Iterable[tuple[str, Literal]]) -> str:
    """Return `{name = literal, …}`."""
    return "{" + ", ".join(f"{name} = {print_literal(value)}" for name, value in arguments) + "}"


class _Reader:
    """The tokens of a literal, read from left to right.

    Attributes:
        token: the current token.
        kind: the name of the group of _TOKEN that matches it; "end" after the last token, "unknown" if none matches.
        start: the offset of the current token in `text`.
        position: the offset at which the next token is searched.
    """

    def __init__(self, text: str):
        self.text, self.position = text, 0
        self.kind, self.token, self.start = "", "", 0
        self.advance()

    def advance(self) -> None:
        """Read the next token into `kind`, `token` and `start`; the kind is "end" after the last, or "unknown"."""
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            remaining = self.text[self.position :].strip()
            self.start = len(self.text) - len(self.text[self.position :].lstrip())
            self.kind, self.token = ("end", "") if not remaining else ("unknown", remaining[0])
            return
        self.kind = match.lastgroup or ""
        self.token, self.start = match[self.kind], match.start(self.kind)
        self.position = match.end()

    def fail(self, expected: str) -> LiteralError:
        """Return the error for the current token."""
        token_text = f"'{self.token}'" if self.kind != "end" else "the end"
        return LiteralError(f"found {token_text}, expected {expected}", self.start)

    def expect(self, token: str) -> None:
        """Read a punctuation mark; raise LiteralError if the current token is another one."""
        if self.token != token or self.kind != "punctuation":
            raise self.fail(f"'{token}'")
        self.advance()

    def literal(self) -> Literal:
        """Read a literal, and return its value. Raise LiteralError if the current token begins none."""
        kind, token, start = self.kind, self.token, self.start
        if token == "[" and kind == "punctuation":
            return self.items()
        if kind in ("punctuation", "end", "unknown"):
            raise self.fail("a literal: number, string, true, false, none, [list] or element type")
        if kind == "word" and token not in _WORDS:
            raise self.fail(f'a literal; write "{token}" if a string is meant, or an element type such as f32')
        self.advance()
        return _scalar(kind, token, start)

    def items(self) -> tuple[Literal, ...]:
        """Read a list in square brackets, and return its items."""
        self.expect("[")
        values: list[Literal] = []
        while self.token != "]":
            values.append(self.literal())
            if self.token != "]":
                self.expect(",")
        self.expect("]")
        return tuple(values)


def _scalar(kind: str, token: str, start: int) -> Literal:
    """Return the value of one token that is a literal, of `kind` in _TOKEN.

    Raises:
        LiteralError: the token is a malformed string, complex number or per-rank integer; at offset `start`.
    """
    if kind == "string":
        try:
            return json.loads(token)
        except ValueError as error:
            reason = str(error).partition(":")[0]
            raise LiteralError(f"found the string {token!r}: {reason}; expected a string as in JSON", start) from None
    if kind == "int":
        return int(token)
    if kind == "float":
        return float(token)
    if kind == "complex":
        try:
            real, imaginary = map(float, token[len("complex(") : -1].split(","))
        except ValueError:
            raise LiteralError(
                "invalid complex literal; expected complex(real, imaginary), as in complex(1.0, -2.0)", start
            ) from None
        return complex(real, imaginary)
    if kind == "operand":
        return SizeOperand(int(token[1:]))
    if kind == "local":
        return _local(token, start)
    return _WORDS[token]


def _local(token: str, start: int) -> Local:
    """Parse a token such as `size(8, tp) * 2 + 1`, at offset `start`."""
    match = _LOCAL.fullmatch(token)
    assert match
    first_shard, bar, second_shard = match[2].partition("|")
    if bool(bar) != (match[1] in PRECEDENCE):
        expected = "one shard" if bar else "two shards, as in (8, tp | 8, tp)"
        raise LiteralError(f"found {token}, expected {expected} in {match[1]}(…)", start)
    other_shard = _shard("shard", second_shard, token, start) if bar else None
    plus = int(match[5] or 0) * (-1 if match[4] == "-" else 1)
    local = _shard(match[1], first_shard, token, start)
    return attrs.evolve(local, times=int(match[3] or 1), plus=plus, other=other_shard)


def _shard(kind: str, operands_text: str, token: str, start: int) -> Local:
    """Return the `Local` of one shard from the text inside its round brackets, such as `8, tp: S(0), back 2`.

    Args:
        token, start: the whole token and its offset, for errors.
    """
    extent, *parts = split_entries(operands_text) or [""]
    back = re.fullmatch(r"back ([0-9]+)", parts[-1].strip()) if parts else None
    parts = parts[:-1] if back else parts
    axes = tuple(part.partition(":")[0].strip() for part in parts)
    placement_texts = [part.partition(":")[2] for part in parts]
    if (
        not (extent.isascii() and extent.strip().isdecimal())
        or not all(map(is_axis, axes))
        or (any(placement_texts) and not all(placement_texts))
    ):
        raise LiteralError(f"found {token}, expected {kind}(extent, axis, …) or …(extent, axis: placement, …)", start)
    try:
        placements = tuple(map(parse_placement, filter(None, placement_texts)))
    except SpmdirError as error:
        raise LiteralError(error.message, start) from None
    if not all(isinstance(placement, ShardPlacement) for placement in placements):
        raise LiteralError(
            f"found {token}, expected placements that shard a dimension, as in {kind}(8, tp: S(0))", start
        )
    return Local(kind, int(extent), axes, placements=placements, back=int(back[1]) if back else 0)


@lru_cache(maxsize=65536)
def parse_arguments(text: str) -> tuple[tuple[str, Literal], ...]:
    """Parse `{name = literal, …}` into pairs sorted by name.

    Raises:
        LiteralError: the text is malformed or names an argument twice.
    """
    reader = _Reader(text)
    reader.expect("{")
    pairs: dict[str, Literal] = {}
    while reader.token != "}":
        name, start = reader.token, reader.start
        if not name.isidentifier():  # nan_to_num has an argument `nan`
            raise reader.fail("an argument name")
        reader.advance()
        reader.expect("=")
        if name in pairs:
            raise LiteralError(f"argument '{name}' is given twice; expected one value: remove one", start)
        pairs[name] = reader.literal()
        if reader.token != "}":
            reader.expect(",")
    reader.expect("}")
    return tuple(sorted(pairs.items()))
