"""Parse the text of a tensor op: its operands, and its tail of arguments, types and shardings.

The tail is parsed as one text and memoised, because the layers of a model repeat it.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from xdsl.ir import Attribute, SSAValue
from xdsl.parser import Parser

from spmdir.core.axes import AXIS_TEXT
from spmdir.core.brackets import scan_balanced
from spmdir.core.dtype import DTYPES, unknown_dtype
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import until_declared
from spmdir.core.placement.call import Literal, Structure
from spmdir.core.placement.literals import LiteralError, parse_arguments
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.tensor import sized_meta
from spmdir.dialects.attributes import (
    DYNAMIC,
    ArgumentsAttr,
    ShapesAttr,
    ShardingsAttr,
    host_type,
    pending,
    print_type,
    shardings_attr,
    type_of,
)
from spmdir.dialects.parser_declarations import Hints
from spmdir.dialects.size_types import SizeType, read_measure, read_size

_NAME = r"%[A-Za-z0-9_$.\-]+(?:\#[0-9]+)?"


OPERANDS = re.compile(r"\s*\(([^()]*)\)")


BARE_OPERANDS = re.compile(rf"\s*((?:{_NAME}(?:\s*,\s*{_NAME})*)?)")


_OPERAND_TOKEN = re.compile(rf"\s*({_NAME}|none|\[|\]|,)")


_TENSOR = r"tensor<(?:[^<>]|<[^<>]*>)*>"
_HOST = rf"!spmd\.host<\s*{_TENSOR}\s*>"
_TYPE = re.compile(rf"\s*({_TENSOR}|none\b|!spmd\.size<[^<>]*>|{_HOST}|!spmd\.pending<\s*(?:{_TENSOR}|{_HOST})\s*>)")
_WRAPPED = re.compile(r"!spmd\.(pending|host)<\s*(.*?)\s*>", re.DOTALL)


_SHAPE = re.compile(r"tensor<((?:(?:[0-9]+|\?|\[[^\[\]]*\])x)*)([A-Za-z]\w*(?:<\w+>)?)>")


_SIZE = re.compile(r"([0-9]+|\?|\[[^\[\]]*\])x")


_SIZE_OPERAND = re.compile(r'"(?:[^"\\]|\\.)*"|' + f"({_NAME})")


_CONTINUATION = re.compile(r"\s*(needs|of)\b")


_AXIS_LIST = re.compile(rf"\[\s*({AXIS_TEXT}(\s*,\s*{AXIS_TEXT})*)?\s*\]")


_COLON = re.compile(r"\s*:")


_NEEDS = re.compile(r"\s*needs\s*\(")


_OF = re.compile(r"\s*of\s+")


_TAIL_END = re.compile(
    r"\s*(?:\n|//|loc\s*\(|\}|\Z)|\s+(?:attributes\s*\{|(?:func\.)?return\b|" + rf"{_NAME}(?::[0-9]+)?\s*[,=])"
)
"""The text after an op: the end of its line, or the start of the next op on the same line."""


_LOCATION_END = re.compile(r" loc\((?:unknown|#\w+)\)$", re.ASCII)
"""The printed location of an op, at the end of its line."""


_TOKEN = re.compile(r"\s+|\w+|.", re.DOTALL)
"""Text inside which no op ends. All blanks are one match, so that long runs of blanks take linear time."""


def parse_operands(parser: Parser, text: str, offset: int) -> tuple[list[SSAValue], Structure | None]:
    """Return the operands in `text`, which starts at `offset` of the parser's text, and their structure.

    `%x, [%a, none]` has the operands %x and %a, and the structure (1, (1, 0)). If all are tensors it is None.
    """
    if "[" not in text and "none" not in text:
        values = [parser.ssa_values.get(name.strip()[1:]) for name in text.split(",")]
        if all(value is not None and len(value) == 1 for value in values):
            return [value[0] for value in values if value], None
    operands: list[SSAValue] = []
    structure: list[Any] = []
    current: list[Any] | None = None  # the structure of the list that is open
    position, may_start_operand = 0, True
    while text[position:].strip():
        match = _OPERAND_TOKEN.match(text, position)
        if match is None:
            parser.raise_error(
                f"found '{_next_word(text, position)}', expected operands: %name, none or [list]",
                offset + position,
                offset + position + 1,
            )
        token, position = match[1], match.end()
        if token not in ",]" and not may_start_operand:
            parser.raise_error(
                f"found '{token}', expected ',' before it: separate operands by commas",
                offset + match.start(1),
                offset + match.end(1),
            )
        may_start_operand = token in ",["
        if token == "[" and current is None:
            current = []
        elif token == "]" and current is not None:
            structure.append(tuple(current))
            current = None
        elif token in "[]":
            problem = "a list of operands inside a list" if token == "[" else "']' without '['"
            parser.raise_error(
                f"found {problem}; expected operands such as `%x, [%y, none]`",
                offset + match.start(1),
                offset + match.end(1),
            )
        elif token != ",":
            (structure if current is None else current).append(int(token != "none"))
            if token != "none":
                operands.append(_find_value(parser, token[1:], offset + match.start(1)))
    if current is not None:
        parser.raise_error("the list of operands is not closed; expected ']'", offset, offset + 1)
    return operands, None if all(entry == 1 for entry in structure) else tuple(structure)


def replace_size_operands(parser: Parser, text: str, offset: int) -> tuple[str, list[SSAValue]]:
    """Replace the names of size operands in `text` by numbers, as in `%0`; return the text and the operands.

    The result is as long as `text`, so offsets in errors stay correct.
    """
    sizes: list[SSAValue] = []

    def replace(match: re.Match[str]) -> str:
        """Return the number of the size operand that `match` names, such as `%0`, padded to the length of the name."""
        if match[1] is None:
            return match[0]
        value = _find_value(parser, match[1][1:], offset + match.start())
        if not isinstance(value.type, SizeType):
            place = offset + match.start()
            parser.raise_error(f"{match[1]} is {print_type(value.type)}; expected a size", place, place + len(match[1]))
        if value not in sizes:
            sizes.append(value)
        return f"%{sizes.index(value)}".ljust(len(match[0]))

    return _SIZE_OPERAND.sub(replace, text), sizes


def _find_value(parser: Parser, name: str, position: int) -> SSAValue:
    """Return the value `x` or `x#1` that the text has defined, or raise an error at `position`."""
    name, _, index = name.partition("#")
    values = parser.ssa_values.get(name)
    if values is None:
        parser.raise_error(
            f"%{name} is not defined before its use here; expected the name of an argument or of an earlier result",
            position,
            position + len(name) + 1,
        )
    if int(index or 0) >= len(values):
        parser.raise_error(
            f"found %{name}#{index}, but %{name} has {len(values)} values; expected a number below {len(values)}",
            position,
            position + len(name) + 1,
        )
    return values[int(index or 0)]


def tail_end(text: str, start: int) -> int:
    """Return the position where the op ends whose tail begins at `start`. Without a proper end, it is the end of text.

    Most ops end at the end of their line, before a location if any. Other ops are scanned token by token.
    """
    line = text.find("\n", start)
    if line >= 0:
        location = _LOCATION_END.search(text, start, line)
        end = location.start() if location else line
        if _is_complete(text[start:end]) and (location or not _CONTINUATION.match(text, line)):
            return end
    end = _scan_tail(text, start)
    return len(text) if end < 0 else end


@lru_cache(maxsize=65536)
def _is_complete(line: str) -> bool:
    """Return whether the op ends at the end of `line`. Memoised, because the layers of a model repeat lines."""
    return _scan_tail(line, 0) == len(line)


def _scan_tail(text: str, start: int) -> int:
    """Return the position where the op ends; -1 if a bracket or a string in it is not closed.

    An op ends at a line end or at the start of the next op, outside brackets. A line that begins with `needs` or `of`
    continues the op.
    """
    position = start
    while True:
        match = _TAIL_END.match(text, position)
        if match:
            continuation = _CONTINUATION.match(text, match.end()) if match[0].endswith("\n") else None
            if continuation is None:
                return position
            position = continuation.end()
        elif text[position] in "<{([":
            position = scan_balanced(text, position)
            if position < 0:
                return -1
        elif text[position] == '"':
            position = text.find('"', position + 1) + 1
            if position == 0:
                return -1
        else:
            token = _TOKEN.match(text, position)
            assert token is not None  # at the end of the text `_TAIL_END` matches
            position = token.end()


@until_declared
@lru_cache(maxsize=65536)
def parse_tail(
    clauses: tuple[tuple[str, str], ...], text: str, mesh: Mesh | None, hints: Hints
) -> tuple[dict[str, Attribute], tuple[Attribute, ...]]:
    """Return (property → attribute, result types) of the tail of an op, such as `{dim = 1} : tensor<4xf32> <dp: S(0)>`.

    Args:
        clauses: (keyword, argument) pairs that the op writes without braces, in order.
        mesh: the mesh that the text has declared; None if it has not.

    Raises:
        LiteralError: the text is malformed; the error has the offset in `text`.
    """
    arguments, position = _parse_clauses(clauses, text, mesh)
    literals, position = _parse_literals(text, position)
    arguments.update(literals)
    colon = _COLON.match(text, position)
    if colon is None:
        raise LiteralError(
            f"found '{_next_word(text, position)}', expected ':' and {_expected_text(clauses, text)}", position
        )
    types, shardings, position = _parse_types(text, colon.end(), mesh, hints)
    needs, position = _parse_needs(text, position, mesh)
    shapes, position = _parse_shapes(text, position)
    if text[position:].strip():
        raise LiteralError(
            f"found '{_next_word(text, position)}' after the result types; expected the end of the op", position
        )
    properties: dict[str, Attribute | None] = {
        "arguments": ArgumentsAttr(tuple(sorted(arguments.items()))) if arguments else None,
        "sharding": shardings_attr(tuple(shardings)) if any(entry is not None for entry in shardings) else None,
        "needs": needs,
        "of": shapes,
    }
    return {name: attribute for name, attribute in properties.items() if attribute is not None}, tuple(types)


def _next_word(text: str, position: int) -> str:
    """Return the word at `position` of a text, for messages."""
    return next(iter(text[position:].split()), "the end")


def _expected_text(clauses: tuple[tuple[str, str], ...], text: str) -> str:
    """Return the part of an error that names what may follow: the result types, or a clause that is still missing."""
    missing = ", ".join(f"'{keyword}'" for keyword, _ in clauses if keyword not in text)
    return "the result types" + (f" or one of {missing}" if missing else "")


def _parse_clauses(
    clauses: tuple[tuple[str, str], ...], text: str, mesh: Mesh | None
) -> tuple[dict[str, Literal], int]:
    """Return the leading arguments with a keyword, as in `on [tp] dim 0`, and the position after them."""
    arguments: dict[str, Literal] = {}
    position, keywords = 0, {keyword for keyword, _ in clauses}
    for keyword, name in clauses:
        match = _clause_pattern(keyword).match(text, position)
        if match is None:
            continue
        # The next keyword is not a value: this one is a flag.
        is_flag = match[1] is None or match[1] in keywords
        arguments[name] = True if is_flag else _parse_clause_value(match[1], mesh, match.start(1))
        position = match.start(1) if is_flag and match[1] else match.end()
    return arguments, position


@cache
def _clause_pattern(keyword: str) -> re.Pattern[str]:
    """Return the pattern of `keyword` and its value, group 1: a list, a word, a number or a string."""
    return re.compile(rf"\s*{keyword}\b(?!\s*=)\s*(\[[^\]]*\]|-?\w+|\"[^\"]*\")?")


def _parse_literals(text: str, position: int) -> tuple[dict[str, Literal], int]:
    """Return the arguments in braces, if any, and the position after them."""
    start = len(text) - len(text[position:].lstrip())  # the first position that is not blank
    if not text.startswith("{", start):
        return {}, start
    end = scan_balanced(text, start)
    if end < 0:
        raise LiteralError("the arguments are not closed; expected '}'", start)
    try:
        return dict(parse_arguments(text[start:end])), end
    except LiteralError as error:
        raise LiteralError(str(error), start + error.offset) from None


def _parse_needs(text: str, position: int, mesh: Mesh | None) -> tuple[ShardingsAttr | None, int]:
    """Return the `needs` clause, if any, and the position after it."""
    needs = _NEEDS.match(text, position)
    if needs is None:
        return None, position
    end = scan_balanced(text, needs.end() - 1)
    if end < 0:
        raise LiteralError("`needs (` is not closed; expected ')'", needs.end() - 1)
    shardings = []
    for entry in re.findall(r"<[^<>]*>|_", text[needs.end() : end - 1]):
        shardings.append(None if entry == "_" else _parse_sharding(entry[1:-1], mesh, needs.end()))
    return shardings_attr(tuple(shardings)), end


def _parse_shapes(text: str, position: int) -> tuple[ShapesAttr | None, int]:
    """Return the `of` clause, if any, and the position after it. The clause is the last of the text."""
    of = _OF.match(text, position)
    if of is None:
        return None, position
    try:
        shapes = dict(parse_arguments("{of = [" + text[of.end() :] + "]}"))["of"]
    except LiteralError:
        raise LiteralError("expected global shapes after 'of', as in `of [10, 4], none`", of.end()) from None
    return ShapesAttr(shapes), len(text)  # type: ignore  # checked where the op is verified


def _parse_clause_value(text: str, mesh: Mesh | None, offset: int) -> Literal:
    """Return the value of a clause: a list of axes, a name or a literal. Sub-axes are merged if the mesh is known.

    Args:
        offset: the position of the value, for errors.
    """
    if text.startswith("[") and _AXIS_LIST.fullmatch(text):
        axes = tuple(name.strip() for name in text[1:-1].split(",") if name.strip())
        return mesh.merge(axes) if mesh else axes
    if text.isidentifier() and text not in ("true", "false", "none"):
        return text
    try:
        return dict(parse_arguments("{value = " + text + "}"))["value"]
    except LiteralError as error:
        raise LiteralError(str(error), offset) from None


def _parse_types(
    text: str, position: int, mesh: Mesh | None, hints: Hints
) -> tuple[list[Attribute], list[Sharding | None], int]:
    """Return the type and the sharding of each result, and the position after them."""
    types: list[Attribute] = []
    shardings: list[Sharding | None] = []
    if not text[position:].strip():
        raise LiteralError("expected a result type, as in tensor<16x64xf32>", position)
    while True:
        match = _TYPE.match(text, position)
        if match is None:
            raise LiteralError(
                f"found '{text[position:].strip()[:24]}', expected a type: tensor<16x64xf32> or none", position
            )
        types.append(parse_type(match[1], match.start(1), hints))
        position = match.end()
        bracket = re.compile(r"\s*<([^<>]*)>").match(text, position)
        shardings.append(_parse_sharding(bracket[1], mesh, bracket.start(1)) if bracket else None)
        position = bracket.end() if bracket else position
        comma = re.compile(r"\s*,").match(text, position)
        if comma is None:
            return types, shardings, position
        position = comma.end()


@lru_cache(maxsize=65536)
def parse_type(text: str, offset: int, hints: Hints) -> Attribute:
    """Return the type with the text `text`.

    Raises:
        LiteralError: there is no such type; its offset is relative to `offset`.
    """
    if text == "none":
        return type_of(None)
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped is not None:
        wrapped_type = parse_type(wrapped[2], offset + wrapped.start(2), hints)
        return pending(wrapped_type) if wrapped[1] == "pending" else host_type(wrapped_type)
    if text.startswith("!"):
        try:
            return SizeType(read_measure(text[text.index("<") + 1 : -1], hints))
        except SpmdirError as error:
            raise LiteralError(error.message, offset) from None
    match = _SHAPE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise LiteralError(f"found '{text}', expected a tensor type such as tensor<16x64xf32>", offset)
    if match[2] not in DTYPES:
        raise LiteralError(unknown_dtype(match[2], f" in '{text}'"), offset)
    try:
        sizes = tuple(_read_size(size, hints) for size in _SIZE.findall(match[1]))
        return type_of(sized_meta(sizes, dict(hints), match[2]))
    except SpmdirError as error:
        raise LiteralError(error.message, offset) from None


def _read_size(text: str, hints: Hints) -> Any:
    """Return the size `8`, `?` or `[2*s0]` of a tensor type."""
    if not text.startswith("["):
        return DYNAMIC if text == "?" else int(text)
    return read_size(text[1:-1], hints)


def _parse_sharding(text: str, mesh: Mesh | None, offset: int) -> Sharding:
    """Parse the sharding of a value, `dp: S(0)`, and merge its sub-axes if the mesh is known.

    Args:
        offset: the position of the sharding in the text of the op, for errors.
    """
    try:
        return parse_sharding(text) if mesh is None else parse_sharding(text, mesh.name).merged(mesh)
    except SpmdirError as error:
        raise LiteralError(error.message, offset) from None
