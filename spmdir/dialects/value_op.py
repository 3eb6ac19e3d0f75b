"""The one shape all tensor ops share: operands, literal arguments, and a sharding for each result.

    %0, %1 = NAME(%x, [%a, none]) {dim = 1} : tensor<4x8xf32> <dp: S(0)>, none needs (<dp: S(0)>, <>) of [10, 8], none

`needs` gives the shardings the op wants its operands in, where they differ from what the operands have; it
stands between propagate and insert-reshard. `of` gives global shapes after localize, where ranks differ in size.
What passes note about an op follows last, as `attributes {name = attribute}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from xdsl.dialects.builtin import UNKNOWN_LOC, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation, opt_prop_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from spmdir.axes import AXIS_TEXT
from spmdir.call import Call, Literal, Local, SizeOperand, Structure, TensorMeta, sized_meta, with_sizes
from spmdir.dialects.attributes import (
    DYNAMIC,
    ELEMENT_TYPES,
    ArgumentsAttr,
    ShapesAttr,
    ShardingsAttr,
    StructureAttr,
    meta_of,
    print_type,
    shardings_attr,
    type_of,
)
from spmdir.dialects.brackets import scan_balanced
from spmdir.dialects.literals import LiteralError, parse_arguments, print_arguments, print_literal
from spmdir.dialects.size_types import Hints, SizeType, hint_of, read_measure
from spmdir.errors import ShardingError, SpmdirError
from spmdir.mesh import Mesh
from spmdir.sharding import Sharding, parse_sharding
from spmdir.size import Real, parse_number

_NAME = r"%[A-Za-z0-9_$.\-]+(?:\#\d+)?"
_OPERANDS = re.compile(r"\s*\(([^()]*)\)")
_BARE_OPERANDS = re.compile(rf"\s*((?:{_NAME}(?:\s*,\s*{_NAME})*)?)")
_OPERAND_TOKEN = re.compile(rf"\s*({_NAME}|none|\[|\]|,)")
_TYPE = re.compile(r"\s*(tensor<(?:[^<>]|<[^<>]*>)*>|none\b|!spmd\.size<[^<>]*>)")
_SHAPE = re.compile(r"tensor<((?:(?:\d+|\?|\[[^\[\]]*\])x)*)([A-Za-z]\w*(?:<\w+>)?)>")
_SIZE = re.compile(r"(\d+|\?|\[[^\[\]]*\])x")
_SIZE_OPERAND = re.compile(r'"(?:[^"\\]|\\.)*"|' + f"({_NAME})")
_CONTINUED = re.compile(r"\s*(needs|of)\b")
_NAMES = re.compile(rf"\[\s*({AXIS_TEXT}(\s*,\s*{AXIS_TEXT})*)?\s*\]")
_TAIL_END = re.compile(r"\s*(?:\n|//|loc\s*\(|\}|\Z)|\s+attributes\s*\{")


_IMPOSSIBLE = {"i1": ("sum", "avg", "product"), "complex": ("max", "min")}
"""Element type → the reductions that its values do not have."""


class ValueOp(IRDLOperation):
    """Base of `aten` and `spmd` tensor ops."""

    inputs = var_operand_def()
    outputs = var_result_def()
    arguments = opt_prop_def(ArgumentsAttr)
    structure = opt_prop_def(StructureAttr)
    sharding = opt_prop_def(ShardingsAttr)
    needs = opt_prop_def(ShardingsAttr)
    of = opt_prop_def(ShapesAttr)

    CLAUSES: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(keyword, argument) pairs that the custom form prints instead of `{…}`, in order."""
    PARENTHESISED: ClassVar[bool] = True
    """Whether operands print as `(…)`."""
    MAY_BE_OPEN: ClassVar[bool] = False
    """Whether the sharding may leave an axis to the compiler."""

    @property
    def tensors(self) -> Sequence[SSAValue]:
        """The operands but for sizes, which come last."""
        operands = self._operands
        count = len(operands)
        while count and type(operands[count - 1]._type) is SizeType:
            count -= 1
        return operands if count == len(operands) else operands[:count]

    @property
    def sizes(self) -> Sequence[SSAValue]:
        """The operands that are sizes; arguments refer to them."""
        return self._operands[len(self.tensors) :]

    @property
    def argument(self) -> dict[str, Literal]:
        """Argument name → literal."""
        given: Any = self.properties.get("arguments")
        return dict(given.data) if given is not None else {}

    @property
    def shardings(self) -> tuple[Sharding | None, ...]:
        """The sharding of each result; None where undecided."""
        held: Any = self.properties.get("sharding")
        return held.data if held is not None else (None,) * len(self.results)

    @property
    def metas(self) -> tuple[TensorMeta | None, ...]:
        """Shape and element type of each result."""
        return tuple(meta_of(result.type) for result in self.results)

    def set_shardings(self, shardings: Sequence[Sharding | None]) -> None:
        """Give each result its sharding."""
        self.properties["sharding"] = shardings_attr(tuple(shardings))

    def call(self) -> Call:
        """This op as a plain value; symbolic sizes are their examples."""
        arguments = self.arguments.data if self.arguments else ()
        operands = self._operands
        if operands and type(operands[-1]._type) is SizeType:
            operands = self.tensors
            arguments = with_sizes(arguments, [size.type.data.hint for size in self.sizes])  # type: ignore
        return Call(
            self.name,
            tuple(meta_of(operand._type) for operand in operands),  # type: ignore  # a hot accessor
            arguments,
            self.metas,
            self.structure.data if self.structure else None,
        )

    @classmethod
    def build_op(
        cls,
        operands: Sequence[SSAValue],
        results: Sequence[TensorMeta | None],
        arguments: tuple[tuple[str, Literal], ...] = (),
        shardings: Sequence[Sharding | None] | None = None,
        structure: Structure | None = None,
        location: Any = None,
    ) -> ValueOp:
        """A new op; `arguments` are sorted by name, `shardings` has one entry a result."""
        properties: dict[str, Attribute] = {}
        if arguments:
            properties["arguments"] = ArgumentsAttr(arguments)
        if structure is not None:
            properties["structure"] = StructureAttr(structure)
        if shardings is not None:
            properties["sharding"] = shardings_attr(tuple(shardings))
        return cls.create(
            operands=operands,
            result_types=[type_of(meta) for meta in results],
            properties=properties,
            location=location or UNKNOWN_LOC,
        )

    def verify(self, verify_nested_ops: bool = True) -> None:
        """Verify at once an op that has nothing which a tensor op never has; xDSL tells what is wrong with others."""
        usual = not self.regions and not self.successors and self.parent is not None and self.parent.last_op is not self
        if usual and all(type(value) is _PROPERTIES.get(name) for name, value in self.properties.items()):
            self.check_counts()
        else:
            super().verify(verify_nested_ops)

    def verify_(self) -> None:
        self.check_counts()

    def check_counts(self) -> None:
        """Raise unless there is one entry for each value, and the shardings fit."""
        for attribute, count, what in (
            (self.sharding, len(self.results), "result"),
            (self.needs, len(self.tensors) if self.needs else 0, "operand"),
            (self.of, len(self.results), "result"),
        ):
            if attribute is not None and len(attribute.data) != count:
                raise VerifyException(f"has {len(attribute.data)} entries for {count} {what}s; give one a {what}")
        self.check_size_operands()
        self.check(mesh_of(self))

    def check(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError unless the shardings fit the mesh and the shapes."""
        self.check_numbers(mesh)
        for operand, need in zip(self.tensors, self.needs.data, strict=True) if self.needs else ():
            if need is not None:
                check_sharding(need, mesh, meta_of(operand.type))
                check_decided(need)
        of = self.of.data if self.of else (None,) * len(self.results)
        for result, sharding, whole in zip(self.results, self.shardings, of, strict=True):
            meta = meta_of(result.type)
            if meta is None and result.type != type_of(None):
                raise VerifyException(f"gives {result.type}; expected a tensor of a known element type, or none")
            if meta is not None and (whole is not None or DYNAMIC in meta.shape):
                check_pieces(meta, whole, sharding, mesh)
            if sharding is None:
                continue
            check_sharding(sharding, mesh, meta_of(result.type))
            if not self.MAY_BE_OPEN:
                check_decided(sharding)

    def check_size_operands(self) -> None:
        """Raise VerifyException unless the arguments refer to the operands that are sizes."""
        arguments: Any = self.properties.get("arguments")
        takes = bool(self._operands) and type(self._operands[-1]._type) is SizeType
        if not takes and (arguments is None or not _refers(arguments)):
            return
        count = len(self.sizes)
        found = _size_operands(tuple(value for _, value in arguments.data) if arguments else ())
        if found != set(range(count)):
            shown = ", ".join(f"%{index}" for index in sorted(found)) or "none"
            raise VerifyException(f"takes {count} sizes as its last operands; its arguments refer to {shown}")

    def check_numbers(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError if an argument is a rank's own number, where none is or its axes are not in the mesh."""
        for _, value in self.arguments.data if self.arguments else ():
            for number in value if isinstance(value, tuple) else (value,):
                for axis in number.axes if isinstance(number, Local) else ():
                    function = self.parent_op()
                    if mesh is None or function is None or "spmd.local" not in function.attributes:
                        raise ShardingError(f"{number} is a rank's own number; only a function after localize has such")
                    mesh.require(axis)

    def print(self, printer: Printer) -> None:
        tensors: Sequence[SSAValue] = self._operands
        sizes: Sequence[SSAValue] = ()
        if tensors and type(tensors[-1]._type) is SizeType:
            tensors, sizes = self.tensors, self.sizes
        if self.PARENTHESISED:
            printer.print_string("(")
            _print_operands(printer, iter(tensors), self.structure.data if self.structure else (1,) * len(tensors))
            printer.print_string(")")
        elif tensors:
            printer.print_string(" ")
            printer.print_list(tensors, printer.print_ssa_value)
        tail = _print_tail(self.CLAUSES, *map(self.properties.get, _TAIL), self.result_types)  # type: ignore
        print_with_sizes(printer, tail, sizes) if sizes else printer.print_string(tail)
        if self.attributes:
            printer.print_string(" attributes ")
            printer.print_attr_dict(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> ValueOp:
        return cls.parse_from(parser, parser.pos)

    @classmethod
    def parse_from(cls, parser: Parser, start: int) -> ValueOp:
        """The op whose name ends at `start` of the parser's text."""
        text = parser.lexer.input.content
        pattern = _OPERANDS if cls.PARENTHESISED else _BARE_OPERANDS
        match = pattern.match(text, start)
        if match is None:
            parser.raise_error(
                f"expected the operands of {cls.name} in parentheses, as in {cls.name}(%x, %y)", start, start + 1
            )
        operands, structure = _parse_operands(parser, match[1], match.start(1))
        end = _tail_end(text, match.end())
        tail = text[match.end() : end]
        if "%" in tail:
            tail, sizes = take_sizes(parser, tail, match.end())
            if sizes:
                operands += sizes
        mesh, hints = getattr(parser, "mesh", "mesh"), getattr(parser, "hints", ())
        try:
            properties, types = _parse_tail(cls.CLAUSES, tail, mesh, hints)
        except LiteralError as error:
            parser.raise_error(str(error), match.end() + error.offset, match.end() + error.offset + 1)
        parser._resume_from(end)  # pyright: ignore[reportPrivateUsage]
        if structure is not None:
            properties = {**properties, "structure": StructureAttr(structure)}
        noted = text.startswith("attributes", parser.pos)
        extra = parser.parse_optional_attr_dict_with_keyword() if noted else None
        return cls.create(
            operands=operands, result_types=types, properties=properties, attributes=extra.data if extra else {}
        )


_PROPERTIES: dict[str, type[Attribute]] = {
    "arguments": ArgumentsAttr,
    "structure": StructureAttr,
    "sharding": ShardingsAttr,
    "needs": ShardingsAttr,
    "of": ShapesAttr,
}
_TAIL = ("arguments", "sharding", "needs", "of")


@lru_cache(maxsize=65536)
def _print_tail(
    clauses: tuple[tuple[str, str], ...],
    arguments: ArgumentsAttr | None,
    sharding: ShardingsAttr | None,
    needs: ShardingsAttr | None,
    of: ShapesAttr | None,
    types: tuple[Attribute, ...],
) -> str:
    given = dict(arguments.data) if arguments else {}
    text = ""
    for keyword, name in clauses:
        if name in given:
            value = given.pop(name)
            text += f" {keyword}" if value is True else f" {keyword} {_print_clause(value)}"
    if given:
        text += " " + print_arguments(sorted(given.items()))
    shardings = sharding.data if sharding else (None,) * len(types)
    text += " : " + ", ".join(
        print_type(type_) + ("" if s is None else f" <{s}>") for type_, s in zip(types, shardings, strict=True)
    )
    if needs:
        text += f" needs ({', '.join('_' if s is None else f'<{s}>' for s in needs.data)})"
    if of:
        text += " of " + ", ".join(map(print_literal, of.data))
    return text


def _print_clause(value: Literal) -> str:
    if isinstance(value, tuple) and all(isinstance(entry, str) for entry in value):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, str) and value.isidentifier():
        return value
    return print_literal(value)


def _print_operands(printer: Printer, values: Any, structure: Structure) -> None:
    for index, entry in enumerate(structure):
        if index:
            printer.print_string(", ")
        if isinstance(entry, tuple):
            printer.print_string("[")
            _print_operands(printer, values, entry)
            printer.print_string("]")
        elif entry:
            printer.print_ssa_value(next(values))
        else:
            printer.print_string("none")


def _parse_operands(parser: Parser, text: str, offset: int) -> tuple[list[SSAValue], Structure | None]:
    if "[" not in text and "none" not in text:
        values = [parser.ssa_values.get(name.strip()[1:]) for name in text.split(",")]
        if all(value is not None and len(value) == 1 for value in values):
            return [value[0] for value in values if value], None
    operands: list[SSAValue] = []
    structure: list[Any] = []
    current: list[Any] | None = None
    position = 0
    while text[position:].strip():
        match = _OPERAND_TOKEN.match(text, position)
        if match is None:
            parser.raise_error("expected operands: %name, none or [list]", offset + position, offset + position + 1)
        token, position = match[1], match.end()
        if token == "[" and current is None:
            current = []
        elif token == "]" and current is not None:
            structure.append(tuple(current))
            current = None
        elif token in "[]":
            parser.raise_error(f"unexpected '{token}' among operands", offset + match.start(1), offset + match.end(1))
        elif token != ",":
            (structure if current is None else current).append(int(token != "none"))
            if token != "none":
                operands.append(_resolve(parser, token[1:], offset + match.start(1)))
    if current is not None:
        parser.raise_error("list of operands is never closed", offset, offset + 1)
    return operands, None if all(entry == 1 for entry in structure) else tuple(structure)


def take_sizes(parser: Parser, text: str, offset: int) -> tuple[str, list[SSAValue]]:
    """`text` with the numbers of its operands in the place of their names, and these operands.

    What stands behind keeps its place, for errors to tell.
    """
    sizes: list[SSAValue] = []

    def number(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        value = _resolve(parser, match[1][1:], offset + match.start())
        if not isinstance(value.type, SizeType):
            place = offset + match.start()
            parser.raise_error(f"{match[1]} is {print_type(value.type)}; expected a size", place, place + len(match[1]))
        if value not in sizes:
            sizes.append(value)
        return f"%{sizes.index(value)}".ljust(len(match[0]))

    return _SIZE_OPERAND.sub(number, text), sizes


def print_with_sizes(printer: Printer, text: str, sizes: Sequence[SSAValue]) -> None:
    """Print `text` with the names of operands in the place of their numbers."""
    position = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|%(\d+)', text):
        if match[1] is not None:
            printer.print_string(text[position : match.start()])
            printer.print_ssa_value(sizes[int(match[1])])
            position = match.end()
    printer.print_string(text[position:])


def _refers(arguments: ArgumentsAttr) -> bool:
    """Whether an argument, or an entry of one that is a list, is an operand."""
    return any(
        type(value) is SizeOperand or (type(value) is tuple and any(type(entry) is SizeOperand for entry in value))
        for _, value in arguments.data
    )


def _size_operands(value: Any) -> set[int]:
    """The operands that `value` refers to."""
    if isinstance(value, SizeOperand):
        return {value.index}
    return set().union(*map(_size_operands, value)) if isinstance(value, tuple) else set()


def _resolve(parser: Parser, name: str, position: int) -> SSAValue:
    name, _, index = name.partition("#")
    values = parser.ssa_values.get(name)
    if values is None:
        parser.raise_error(f"%{name} is not defined before its use here", position, position + len(name) + 1)
    if int(index or 0) >= len(values):
        parser.raise_error(f"%{name} has {len(values)} values, so no #{index}", position, position + len(name) + 1)
    return values[int(index or 0)]


def _tail_end(text: str, start: int) -> int:
    """The end of an op: the last line before one that begins something else, brackets balanced."""
    line = text.find("\n", start)
    if line >= 0 and _is_whole(text[start:line]) and not _CONTINUED.match(text, line):
        return line
    return _scan_tail(text, start)


@lru_cache(maxsize=65536)
def _is_whole(line: str) -> bool:
    """Whether nothing in `line` ends the op or goes on after it; memoised, since repeated layers repeat it."""
    return _scan_tail(line, 0) == len(line)


def _scan_tail(text: str, start: int) -> int:
    position = start
    while True:
        match = _TAIL_END.match(text, position)
        if match:
            following = _CONTINUED.match(text, match.end()) if match[0].endswith("\n") else None
            if following is None:
                return position
            position = following.end()
        elif text[position] in "<{([":
            position = scan_balanced(text, position)
            if position < 0:
                return len(text)
        elif text[position] == '"':
            position = text.find('"', position + 1) + 1
            if position == 0:
                return len(text)
        else:
            position += 1


@lru_cache(maxsize=65536)
def _parse_tail(
    clauses: tuple[tuple[str, str], ...], text: str, mesh: str, hints: Hints
) -> tuple[dict[str, Attribute], tuple[Attribute, ...]]:
    """Everything after the operands; memoised, since repeated layers repeat it."""
    given: dict[str, Literal] = {}
    position = 0
    for keyword, name in clauses:
        match = re.compile(rf"\s*{keyword}\b(?!\s*=)\s*(\[[^\]]*\]|-?\w+|\"[^\"]*\")?").match(text, position)
        if match and (match[1] or True):
            value = match[1]
            if value is not None and value in {k for k, _ in clauses}:
                value, end = None, match.start(1)
            else:
                end = match.end()
            given[name] = True if value is None else _parse_clause(value, match.start(1))
            position = end
    rest = text[position:].lstrip()
    position = len(text) - len(rest)
    if rest.startswith("{"):
        end = scan_balanced(text, position)
        if end < 0:
            raise LiteralError("arguments are never closed", position)
        try:
            given.update(parse_arguments(text[position:end]))
        except LiteralError as error:
            raise LiteralError(str(error), position + error.offset) from None
        position = end
    colon = re.compile(r"\s*:").match(text, position)
    if colon is None:
        found = text[position:].strip().split()
        clause_names = ", ".join(f"'{keyword}'" for keyword, _ in clauses if keyword not in text)
        hint = f" or one of {clause_names}" if clause_names else ""
        what = found[0] if found else "the end"
        raise LiteralError(f"found '{what}', expected ':' and the result types{hint}", position)
    types, shardings, position = _parse_types(text, colon.end(), mesh, hints)
    properties: dict[str, Attribute] = {}
    if given:
        properties["arguments"] = ArgumentsAttr(tuple(sorted(given.items())))
    if any(sharding is not None for sharding in shardings):
        properties["sharding"] = shardings_attr(tuple(shardings))
    needs = re.compile(r"\s*needs\s*\(").match(text, position)
    if needs:
        end = scan_balanced(text, needs.end() - 1)
        if end < 0:
            raise LiteralError("needs ( is never closed", needs.end() - 1)
        entries = re.findall(r"<[^<>]*>|_", text[needs.end() : end - 1])
        needed = tuple(None if e == "_" else _sharding(e[1:-1], mesh, needs.end()) for e in entries)
        properties["needs"] = shardings_attr(needed)
        position = end
    of = re.compile(r"\s*of\s+").match(text, position)
    if of:
        try:
            shapes = dict(parse_arguments("{of = [" + text[of.end() :] + "]}"))["of"]
        except LiteralError:
            raise LiteralError("expected global shapes after 'of', as in `of [10, 4], none`", of.end()) from None
        properties["of"] = ShapesAttr(shapes)  # type: ignore
        position = len(text)
    if text[position:].strip():
        raise LiteralError(f"found '{text[position:].strip().split()[0]}' after the result types", position)
    return properties, tuple(types)


def _parse_clause(text: str, offset: int) -> Literal:
    if text.startswith("[") and _NAMES.fullmatch(text):
        return tuple(name.strip() for name in text[1:-1].split(",") if name.strip())
    if text.isidentifier() and text not in ("true", "false", "none"):
        return text
    try:
        return dict(parse_arguments("{value = " + text + "}"))["value"]
    except LiteralError as error:
        raise LiteralError(str(error), offset) from None


def _parse_types(
    text: str, position: int, mesh: str, hints: Hints
) -> tuple[list[Attribute], list[Sharding | None], int]:
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
        shardings.append(_sharding(bracket[1], mesh, bracket.start(1)) if bracket else None)
        position = bracket.end() if bracket else position
        comma = re.compile(r"\s*,").match(text, position)
        if comma is None:
            return types, shardings, position
        position = comma.end()


@lru_cache(maxsize=65536)
def parse_type(text: str, offset: int, hints: Hints) -> Attribute:
    """The type that `text` spells; LiteralError at `offset` if there is none."""
    if text == "none":
        return type_of(None)
    if text.startswith("!"):
        try:
            return SizeType(read_measure(text[text.index("<") + 1 : -1], hints))
        except SpmdirError as error:
            raise LiteralError(error.message, offset) from None
    match = _SHAPE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise LiteralError(f"found '{text}', expected a tensor type such as tensor<16x64xf32>", offset)
    if match[2] not in ELEMENT_TYPES:
        known = ", ".join(ELEMENT_TYPES)
        raise LiteralError(f"unknown element type '{match[2]}' in '{text}'; expected one of {known}", offset)
    try:
        sizes = tuple(_read_size(size, hints) for size in _SIZE.findall(match[1]))
        return type_of(sized_meta(sizes, dict(hints), match[2]))
    except SpmdirError as error:
        raise LiteralError(error.message, offset) from None


def _read_size(text: str, hints: Hints) -> Any:
    if not text.startswith("["):
        return DYNAMIC if text == "?" else int(text)
    size = parse_number(text[1:-1])
    hint_of(size, hints)
    if isinstance(size, (float, Real)):
        raise SpmdirError(f"the size {text} is no integer")
    return size


def _sharding(text: str, mesh: str, offset: int) -> Sharding:
    try:
        return parse_sharding(text, mesh)
    except SpmdirError as error:
        raise LiteralError(error.message, offset) from None


def check_decided(sharding: Sharding) -> None:
    """Raise ShardingError if `sharding` leaves an axis to the compiler."""
    if sharding.open_axes:
        raise ShardingError(f"<{sharding}> leaves '{sharding.open_axes[0]}' open; only an input or a constraint may")


def check_pieces(meta: TensorMeta, whole: Any, sharding: Sharding | None, mesh: Mesh | None) -> None:
    """Raise SpmdirError unless `meta` is what ranks hold of a tensor of shape `whole`; sizes that differ are `?`."""
    if whole is None and sharding is None:
        return  # inside a local form, which alone knows
    if whole is None or sharding is None or mesh is None:
        raise ShardingError(
            f"{print_type(type_of(meta))} leaves a size open; say of what global shape it is a piece, as `of [7, 8]`"
        )
    if not isinstance(whole, tuple) or len(whole) != meta.rank or any(type(n) is not int or n < 0 for n in whole):
        raise ShardingError(f"is of a global tensor of {meta.rank} dimensions, found the shape {whole}")
    sharding.check(mesh, meta.rank)
    held = [sharding.local_shape(whole, mesh, mesh.coordinate(rank)) for rank in range(mesh.world_size)]
    expected = [sizes[0] if len(set(sizes)) == 1 else "?" for sizes in zip(*held, strict=True)]
    found = ["?" if size == DYNAMIC else size for size in meta.shape]
    if found != expected:
        raise ShardingError(f"the pieces of {list(whole)} <{sharding}> have the shape {expected}, found {found}")


def check_sharding(sharding: Sharding, mesh: Mesh | None, meta: TensorMeta | None) -> None:
    """Raise SpmdirError unless a tensor of shape and element type `meta` can have `sharding` on `mesh`."""
    if mesh is None:
        raise ShardingError("has a sharding but the module declares no mesh; add `spmd.mesh @mesh <…>`")
    if meta is None:
        raise ShardingError(f"has the sharding <{sharding}> but is no tensor of a known element type")
    if sharding.mesh != mesh.name:
        raise ShardingError(f"has a sharding over mesh @{sharding.mesh}; the mesh of the module is @{mesh.name}")
    sharding.check(mesh, meta.rank)
    for axis, op in sharding.partial:
        if op in ("any", "all") and meta.dtype != "i1":
            raise ShardingError(f"P({op}) on axis '{axis}' is a reduction of i1 values, found {meta.dtype}")
        if op in _IMPOSSIBLE.get(meta.dtype.partition("<")[0], ()):
            raise ShardingError(f"P({op}) on axis '{axis}' is no reduction of {meta.dtype} values")


def mesh_of(op: Operation) -> Mesh | None:
    """The mesh of the module around `op`."""
    top: Operation = op
    while (parent := top.parent_op()) is not None:
        top = parent
    if isinstance(top, ModuleOp):
        for child in top.body.block.ops:
            if child.name == "spmd.mesh":
                return child.mesh  # type: ignore  # MeshOp, which imports this module
    return None
