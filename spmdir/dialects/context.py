"""Context, parser and printer of the IR.

Parser and printer keep the locations of ops and the names of values. The parser parses repeated text once.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import suppress
from copy import copy
from functools import cached_property, lru_cache
from io import StringIO
from typing import TYPE_CHECKING, Any

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, FunctionType, IntAttr, LocationAttr, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.printer import Printer
from xdsl.utils.lexer import Input, Span, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind, StringLiteral

from spmdir.core.admitted_ops import LISTED
from spmdir.core.dtype import DTYPES, unknown_dtype
from spmdir.core.errors import Location, did_you_mean
from spmdir.core.limits import FRAMES
from spmdir.core.placement.literals import LiteralError
from spmdir.dialects.attributes import ShardingAttr, is_sized, meta_of, print_type
from spmdir.dialects.collectives import find_collective
from spmdir.dialects.layer_calls import LAYER, layer_named, layer_of_parameter
from spmdir.dialects.locations import LocationAliases, location_parts, read_alias
from spmdir.dialects.names import full_name, is_number, keep_name
from spmdir.dialects.op_lookup import class_of
from spmdir.dialects.op_parser import parse_type
from spmdir.dialects.parser_declarations import declared_hints, declared_mesh
from spmdir.dialects.sharding_aliases import ShardingAliases
from spmdir.dialects.value_op import ValueOp
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED, collectives

if TYPE_CHECKING:
    from spmdir.rules import RuleSet


_SIZED_TYPE = re.compile(r"tensor<[^<>]*\[(?:[^<>]|<[^<>]*>)*>")
_PLAIN_TYPE = re.compile(r"tensor<(?:[0-9]+x)*([A-Za-z]\w*)>", re.ASCII)


class IRContext(Context):
    """A context in which every `namespace.op` outside the registered dialects is a torch op.

    Attributes:
        pipeline: the running Pipeline; None for the standard one.
        rules: the rules of the torch ops; by default the packaged ones.
        collectives: the collectives that the planner may choose.
        rewrites: rewrites of plug-ins for fuse-collectives, from `read_rewrites`, in addition to the packaged ones.
        conditions: name → (op, rule) → bool: conditions of plug-ins for the rewrites.
        trials: a TrialRun for each pipeline that passes ran on a copy of the program.
    """

    pipeline: Any = None
    collectives: tuple[CollectiveSpec, ...] = PLANNED
    rewrites: tuple[Any, ...] = ()

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """The conditions of plug-ins."""
        return {}

    @cached_property
    def trials(self) -> list[Any]:
        """The runs of pipelines on copies of the program."""
        return []

    @cached_property
    def rules(self) -> RuleSet:
        """The rules of the torch ops."""
        from spmdir.rules.rule_set import default

        return default()

    def get_optional_op(self, name: str, *, dialect_stack: Any = ()) -> type[Operation] | None:
        """Return the class of op `name`: of a registered dialect, of a collective, or of a torch op.

        None if a registered dialect has the namespace but not the op, or if the name has no namespace.
        """
        op_class = super().get_optional_op(name, dialect_stack=dialect_stack)
        is_in_dialect = name.partition(".")[0] in self.registered_dialect_names
        if op_class is None:
            op_class = find_collective(name)
        if op_class is None and not is_in_dialect:
            op_class = class_of(name)
        return op_class

    def for_trial(self, pipeline: Any) -> IRContext:
        """Return a copy of this context for another pipeline, without trials."""
        trial = self.clone()
        trial.pipeline, trial.trials = pipeline, []
        return trial

    def clone(self) -> IRContext:
        """Return a copy with separate registries of dialects and ops. The attributes of this class are shared."""
        clone = copy(self)
        for name, value in vars(super().clone()).items():
            setattr(clone, name, value)
        return clone


class IRLexer(MLIRLexer):
    """The lexer of MLIR, with two fixes of xDSL's.

    An unclosed string takes linear time, not exponential. A string literal with escaped UTF-8 is a string, not bytes.
    """

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')

    def _lex_string_literal(self, start_pos: int) -> MLIRToken:
        """Return the token of a string. A literal of bytes that are UTF-8 is a string."""
        token = super()._lex_string_literal(start_pos)
        if token.kind is MLIRTokenKind.BYTES_LIT:
            with suppress(UnicodeDecodeError):
                StringLiteral.from_span(token.span).bytes_contents.decode()
                return Token(MLIRTokenKind.STRING_LIT, token.span)
        return token


_HEAD = re.compile(r"(%[\w$.-]+(?:, %[\w$.-]+)*) = ([a-z_]\w*(?:\.\w+)+)(?=[ (])", re.ASCII)


_LAYER_CALL = re.compile(
    r"(%[\w$.-]+(?:, %[\w$.-]+)*) = func\.call @(\w+)\((%[\w$.-]+(?:, %[\w$.-]+)*)\) "
    r'\{spmd\.layer = "([\w.]+)"\} : (?=\()',
    re.ASCII,
)


_LOCATION = re.compile(r"loc\((?:unknown|(#\w+))\)", re.ASCII)


_DICTIONARY = re.compile(r'\{[^{}"]*+(?:"[^"\\{}\n]*+"[^{}"]*+)*+\}')


@lru_cache(maxsize=65536)
def _int_attr(value: int) -> IntAttr:
    return IntAttr(value)


class IRParser(Parser):
    """The parser of modules. An op without a location gets its position in the text as location."""

    def __init__(self, ctx: Context, text: str, name: str, first_line: int = 1):
        super().__init__(ctx, "", name)  # without the text, which `IRLexer` reads instead of xDSL's lexer
        self._parser_state = ParserState(IRLexer(Input(text, name)))
        self._file = StringAttr(name)
        self._first_line = first_line
        self._op_start = 0
        self._tensor_ops: dict[str, type[ValueOp] | None] = {}
        self._types: dict[str, Any] = {}
        self._dictionaries: dict[tuple[Any, ...], dict[str, Attribute]] = {}
        self._place_counts: dict[int, int] = {}  # by id, because hashing a location is slow
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, position: int) -> tuple[int, int]:
        """Return the line and column of a text position, both from 1."""
        line = bisect_right(self._lines, position)
        return line + self._first_line - 1, position - self._lines[line - 1] + 1

    def _parse_alias_def(self) -> None:
        """Parse an alias of an attribute.

        A location that contains more than `FRAMES` places, including those of the aliases in it, is an error.
        """
        start = self.pos
        if not self._parse_printed_alias():
            super()._parse_alias_def()
        attribute = next(reversed(self.attribute_aliases.values()))
        self._place_counts[id(attribute)] = count = 1 + sum(
            self._place_counts.get(id(part), 1) for part in location_parts(attribute)
        )
        line, column = self.place(start)
        FRAMES.check(count, Location(self._file.data, line, column))

    def _parse_printed_alias(self) -> bool:
        """Parse a printed location alias, if one is next, without the slower lexer."""
        alias = read_alias(self.lexer.input.content, self.pos, self.attribute_aliases)
        if alias is None:
            return False
        name, location, end = alias
        self.attribute_aliases[name] = location
        self._resume_from(end)
        return True

    def parse_optional_location(self) -> LocationAttr | None:
        """Parse a location, if one is next. An alias and `loc(unknown)` are read without the slower lexer."""
        text = self.lexer.input.content
        if not text.startswith("loc", self.pos):
            return None
        match = _LOCATION.match(text, self.pos)
        location = (self.attribute_aliases.get(match[1]) if match[1] else UNKNOWN_LOC) if match else None
        if match is None or not isinstance(location, LocationAttr):
            return super().parse_optional_location()
        self._resume_from(match.end())
        return location

    def parse_optional_dictionary_attr_dict(self) -> dict[str, Attribute]:
        """Parse `{name = value, …}`. Without nested braces, it is memoised by its text, which ops often repeat."""
        text = self.lexer.input.content
        match = _DICTIONARY.match(text, self.pos)
        if match is None:
            return super().parse_optional_dictionary_attr_dict()
        key = match[0], declared_mesh(self), declared_hints(self)
        if key in self._dictionaries:
            self._resume_from(match.end())
        else:
            attributes = super().parse_optional_dictionary_attr_dict()
            if text[match.end() : self.pos].strip():
                return attributes  # the closing brace is elsewhere
            self._dictionaries[key] = attributes
        return dict(self._dictionaries[key])

    def parse_operation(self) -> Operation:
        """Parse an op. Without a location, it gets its line and column in the text."""
        line, column = self.place(self.pos)
        self._op_start = self.pos
        op = self._parse_tensor_op() or self._parse_layer_call() or super().parse_operation()
        if op.location == UNKNOWN_LOC:
            op.location = FileLineColLoc(self._file, _int_attr(line), _int_attr(column))
        return op

    def parse_optional_type(self) -> Any:
        """Parse a type, if one is next. Tensor types with numbers are memoised by their text.

        A tensor type with symbolic sizes is an error here: it is allowed in results of ops, which another parser reads.
        """
        start = self.pos
        plain = _PLAIN_TYPE.match(self.lexer.input.content, start)
        if plain is not None:
            if plain[1] not in DTYPES:
                self.raise_error(unknown_dtype(plain[1], f" in '{plain[0]}'"), start, plain.end())
            if plain[0] not in self._types:
                self._types[plain[0]] = super().parse_optional_type()
            else:
                self._resume_from(plain.end())
            return self._types[plain[0]]
        match = _SIZED_TYPE.match(self.lexer.input.content, start)
        if match is None:
            return super().parse_optional_type()
        try:
            type_ = parse_type(match[0], 0, declared_hints(self))
        except LiteralError as error:
            self.raise_error(str(error), start, match.end())
        expected = f"expected {type_}, whose shape is the example of its sizes"
        problem = f"{match[0]} is the type of a result of an op"
        return self.raise_error(f"{problem}; in a signature {expected}", start, match.end())

    def _parse_tensor_op(self) -> Operation | None:
        """Parse a tensor op of the form `%name = op`, if one is next, without the slower lexer."""
        text, start = self.lexer.input.content, self.pos
        head = _HEAD.match(text, start)
        kind = self._tensor_op_class(head[2]) if head else None
        if head is None or kind is None:
            return None
        op = kind.parse_from(self, head.end())
        self._bind(op, head[1], Span(start, head.end(), self.lexer.input))
        return op

    def _parse_layer_call(self) -> Operation | None:
        """Parse the printed call of an outlined layer, if one is next, without the slower lexer.

        None if the text has another form, or an operand is undefined or of another type. Then xDSL's parser reads it.
        """
        text, start = self.lexer.input.content, self.pos
        head = _LAYER_CALL.match(text, start)
        if head is None:
            return None
        operands = [self.ssa_values.get(name[1:]) for name in head[3].split(", ")]
        if not all(value is not None and len(value) == 1 for value in operands):
            return None
        self._resume_from(head.end())
        type_ = self.parse_type()
        values = [value[0] for value in operands if value]
        if not isinstance(type_, FunctionType) or list(type_.inputs) != [value.type for value in values]:
            self._resume_from(start)
            return None
        op = func.CallOp(head[2], values, type_.outputs.data)
        op.attributes[LAYER] = StringAttr(head[4])
        self._bind(op, head[1], Span(start, head.end(), self.lexer.input))
        return op

    def _bind(self, op: Operation, text: str, span: Span) -> None:
        """Parse the location of an op, if any, and bind its results to the names in `text`, such as `%x, %y`."""
        op.location = self.parse_optional_location() or UNKNOWN_LOC
        names = text.replace("%", "").split(", ")
        if len(names) != len(op.results):
            message = f"found {len(names)} names for {len(op.results)} results; expected a name for each result"
            self.raise_error(message, span.start, span.end)
        for name, result in zip(names, op.results, strict=True):
            self._register_ssa_definition(name, (result,), span)

    def _tensor_op_class(self, name: str) -> type[ValueOp] | None:
        """Return the class of the op `name`; None if it is not a tensor op. Classes are memoised by name."""
        if name not in self._tensor_ops:
            kind = self.ctx.get_optional_op(name)
            if name.partition(".")[0] not in self.ctx.registered_dialect_names:
                self._check_namespace(name)
            self._tensor_ops[name] = kind if kind is not None and issubclass(kind, ValueOp) else None
        return self._tensor_ops[name]

    def _check_namespace(self, name: str) -> None:
        """Raise an error for an op of `spmd` with a misspelt namespace, such as `smpd.all_gather`.

        Without this check, the op would be an op of an unknown torch library.
        """
        namespace, _, op_name = name.partition(".")
        if namespace not in ("spmd", *LISTED) and did_you_mean(namespace, ("spmd",)):
            op_class = self.ctx.get_optional_op(f"spmd.{op_name}")
            if op_class is not None:
                position = self._op_start
                self.raise_error(f"unknown op '{name}'; did you mean '{op_class.name}'?", position, position)

    def _get_op_by_name(self, name: str) -> type[Operation]:
        """Return the class of an op; raise an error of the parser for an unknown name."""
        kind = self.ctx.get_optional_op(name, dialect_stack=self._parser_state.dialect_stack)
        if kind is None:
            known_names = [*(op.name for op in self.ctx.loaded_ops), *(f"spmd.{spec.name}" for spec in collectives())]
            self.raise_error(
                f"unknown op '{name}'; expected an op of a dialect, of torch or of a plug-in loaded with "
                f"--load-plugin{did_you_mean(name, known_names)}",
                self._op_start,
                self._op_start,
            )
        return kind

    def _register_ssa_definition(self, name: str, values: Any, span: Any) -> None:
        super()._register_ssa_definition(name, values, span)
        for value in values:
            keep_name(value, name)


WIDTH = 250
"""The maximum length of a line with arguments of an outlined layer or of a stage."""


class IRPrinter(Printer):
    """The printer of modules. Each line has one function argument, or the arguments of one outlined layer.

    Values without a name get numbers after those in the function. Of several values with one name, the first keeps it.

    Attributes:
        shardings: the aliases of the printed shardings; None to print shardings without aliases.
        has_stages: whether functions are stages of a pipelined step. Their arguments share lines.
    """

    shardings: ShardingAliases | None = None
    has_stages: bool = False
    _reserved: frozenset[str] = frozenset()

    @cached_property
    def locations(self) -> LocationAliases:
        """Return the aliases of the printed locations."""
        return LocationAliases()

    def print_ssa_value(self, value: SSAValue) -> str:
        """Print the name of a value with `%`, and return it without. The name is chosen at the first call."""
        name = self._ssa_values.get(value)
        if name is None:
            name = self._new_name(full_name(value))
            self._ssa_values[value] = name
        self.print_string(f"%{name}")
        return name

    def _new_name(self, requested_name: str | None) -> str:
        """Return an unused name for a value: the requested name, with a number after it if it is used.

        Without a requested name, or if it is a number that is used, the result is the next unused number.
        """
        if requested_name is None or (is_number(requested_name) and requested_name[1:] in self.ssa_names):
            return self._get_new_valid_name_id()
        # A number is stored with a dot, as in ".2".
        requested_name = requested_name[1:] if is_number(requested_name) else requested_name
        name, number = requested_name, self.ssa_names.get(requested_name, 0)
        # The requested name itself is reserved for this value. A numbered one may be reserved for another.
        while name in self.ssa_names or (number and name in self._reserved):
            number += 1
            name = f"{requested_name}_{number}"
        self.ssa_names[requested_name] = number
        self.ssa_names.setdefault(name, 0)
        return name

    def print_op(self, op: Operation) -> None:
        """Print an op. Functions and returns have other forms than in xDSL, unless the generic form is printed."""
        if self.print_generic_format or not isinstance(op, (func.FuncOp, func.ReturnOp)):
            super().print_op(op)
            return
        if isinstance(op, func.FuncOp):
            self.enter_scope()
            self._reserve_names(op)
            self._print_function(op)
            self.exit_scope()
        else:
            self._print_return(op)
        if self.print_debuginfo:
            self.print_string(" ")
            self.print_attribute(op.location)

    def _reserve_names(self, function: func.FuncOp) -> None:
        """Keep the names of the values of a function from being given to other values."""
        values = [value for op in function.walk() for value in op.results]
        values += [value for block in function.body.blocks for value in block.args]
        names = {name for name in map(full_name, values) if name}
        self._reserved = frozenset(names)
        # xDSL has a counter for each open scope. The last one is that of this function.
        self._next_valid_name_id[-1] = max((int(name[1:]) + 1 for name in names if is_number(name)), default=0)

    def _print_return(self, op: func.ReturnOp) -> None:
        """Print `return %x, %y : type, type`."""
        self.print_string("return")
        if op.operands:
            self.print_string(" ")
            self.print_list(op.operands, self.print_ssa_value)
            self.print_string(" : ")
            self.print_list(op.operand_types, self.print_attribute)

    def _print_function(self, op: func.FuncOp) -> None:
        """Print a function, with a line for each argument or for the arguments of each outlined layer."""
        visibility = f"{op.sym_visibility.data} " if op.sym_visibility else ""
        self.print_string(f"func.func {visibility}")
        self.print_symbol_name(op.sym_name.data)
        self.print_string("(")
        margin = " " * len(f"func.func {visibility}@{op.sym_name.data}(")
        layers, width = [layer_of_parameter(argument) for argument in op.args], 0
        for index, argument in enumerate(op.args):
            text = self._argument_text(op, index, argument)
            width += len(", ") + len(text)  # of the current line
            if index:
                is_same_layer = layers[index] is not None and layers[index] == layers[index - 1]
                is_called = layer_named(op) is not None or self.has_stages
                fits_line = is_called and len(margin) + width <= WIDTH
                self.print_string(", " if is_same_layer or fits_line else ",\n" + "  " * self._indent + margin)
                width = width if is_same_layer or fits_line else len(text)
            self.print_string(text)
        self.print_string(")")
        self._print_results_of(op)
        if op.attributes:
            self.print_string(" attributes ")
            self.print_attr_dict(op.attributes)
        self.print_string(" ")
        self.print_region(op.body, print_entry_block_args=False)

    def _argument_text(self, op: func.FuncOp, index: int, argument: SSAValue) -> str:
        """Return the name, type and attributes of an argument as text, printed to a temporary stream."""
        stream, self.stream = self.stream, StringIO()
        self.print_ssa_value(argument)
        self.print_string(": ")
        self.print_attribute(argument.type)
        self._print_attrs(op.arg_attrs, index)
        text, self.stream = self.stream.getvalue(), stream
        return text

    def _print_results_of(self, op: func.FuncOp) -> None:
        """Print the result types of a function with their attributes: ` -> (type {…}, type)`."""
        types = op.function_type.outputs.data
        if not types:
            return
        parenthesised = len(types) > 1 or bool(op.res_attrs and op.res_attrs.data[0].data)
        self.print_string(" -> (" if parenthesised else " -> ")
        for index, type_ in enumerate(types):
            if index:
                self.print_string(", ")
            self.print_attribute(type_)
            self._print_attrs(op.res_attrs, index)
        if parenthesised:
            self.print_string(")")

    def _print_attrs(self, attrs: Any, index: int) -> None:
        """Print the attributes of an argument or result, if it has any."""
        if attrs is not None and attrs.data[index].data:
            self.print_string(" ")
            self.print_attr_dict(attrs.data[index].data)

    def print_attribute(self, attribute: Attribute) -> None:
        """Print an attribute or a type. Locations, and shardings if `shardings` is set, are printed as aliases."""
        if self.print_debuginfo and isinstance(attribute, LocationAttr):
            self.print_string(self.locations.text(attribute))
        elif self.shardings is not None and isinstance(attribute, ShardingAttr):
            self.print_string(self.shardings.text(attribute))
        # xDSL prints symbolic sizes as the encoding of the type, which any MLIR parser can read.
        elif meta_of(attribute) is not None and not is_sized(attribute):
            self.print_string(print_type(attribute))
        else:
            super().print_attribute(attribute)
