"""An open text: its parsed parts and its errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.core.errors import SpmdirError, flat
from spmdir.core.input_parts import parts_of
from spmdir.core.limits import CHARACTERS, MISTAKES
from spmdir.dialects import ir
from spmdir.dialects.names import text_name
from spmdir.dialects.verifier import mistakes
from spmdir.language_server.recovery import syntax_errors
from spmdir.language_server.scan import WORD, NameScope, Scan, TextSpan, scan
from spmdir.pipeline.pipeline import Pipeline
from spmdir.rules.language.records import read, read_strategies

Language = Literal["program", "rules", "rewrites"]
"""The language of a text."""


@attrs.frozen
class Mistake:
    """An error in a span of a text, with the message of the tools."""

    span: TextSpan
    message: str


@attrs.frozen(eq=False, slots=False)
class TextPart:
    """A part of a text, between two lines `// -----`.

    Attributes:
        text: the text of the part.
        module: the module that was parsed last; None if the part never parsed.
        is_current: whether `module` was parsed from `text`.
        is_verified: whether `module` passed verification.
        errors: the errors, each with its op if the text parsed.
    """

    text: str
    module: ModuleOp | None
    is_current: bool
    is_verified: bool
    errors: tuple[tuple[Operation | None, SpmdirError], ...]

    @cached_property
    def functions(self) -> list[FuncOp]:
        """The functions of the module in the order of the text."""
        ops = self.module.body.block.ops if self.module is not None else ()
        return [op for op in ops if isinstance(op, FuncOp)]

    @cached_property
    def values(self) -> list[dict[str, SSAValue]]:
        """[function], its values by name, without `%`."""
        return [_values(function) for function in self.functions]


@attrs.frozen(eq=False, slots=False)
class Document:
    """A text that is open in an editor.

    Attributes:
        text: the whole text.
        file: its file name, as in messages.
        language: its language.
        pipeline: the pipeline with the plug-ins and the machine of the program.
        scan: the names and comments of the text.
        parts: the parts of a program; empty for rules and rewrites.
        mistakes: the errors, in the order in which the tools report them.
    """

    text: str
    file: str
    language: Language
    pipeline: Pipeline
    scan: Scan
    parts: tuple[TextPart, ...]
    mistakes: tuple[Mistake, ...]

    def value(self, scope: NameScope, name: str) -> SSAValue | None:
        """Return a value of the module that was parsed last, by its name without `%`."""
        function = self.function(scope)
        return None if function is None else self.parts[scope.part].values[scope.function or 0].get(name)

    def function(self, scope: NameScope) -> FuncOp | None:
        """Return the function of a scope in the module that was parsed last."""
        functions = self.parts[scope.part].functions if scope.part < len(self.parts) else []
        return functions[scope.function] if scope.function is not None and scope.function < len(functions) else None

    def module(self, scope: NameScope) -> ModuleOp | None:
        """Return the module of a scope that was parsed last."""
        return self.parts[scope.part].module if scope.part < len(self.parts) else None


def read_document(text: str, file: str, pipeline: Pipeline, previous: Document | None = None) -> Document:
    """Parse a text, which may be broken.

    If a part of a program does not parse, its module is that of `previous`. A text that is too long is not parsed: its
    only mistake is its length.

    Args:
        file: its extension determines the language.
        previous: the document before the last edit. It is ignored if its pipeline is another one.
    """
    language = _language(file)
    too_long = len(text.encode(errors="replace")) > CHARACTERS.most
    scanned = scan("" if too_long else text)
    if too_long:
        error = Mistake(TextSpan(0, 0), CHARACTERS.error("more").message)
        return Document("", file, language, pipeline, scanned, (), (error,))
    with pipeline.rules:
        if language != "program":
            errors = [(None, error) for error in _ERRORS[language](text, file, pipeline)]
            located = tuple(_locate_mistakes(errors, scanned, 0, file))
            return Document(text, file, language, pipeline, scanned, (), located)
        previous_parts = previous.parts if previous is not None and previous.pipeline is pipeline else ()
        parts: list[TextPart] = []
        mistakes: list[Mistake] = []
        for number, (first_line, part_text) in enumerate(parts_of(text)):
            previous_part = previous_parts[number] if number < len(previous_parts) else None
            part = _read_part(part_text, file, first_line, previous_part)
            parts.append(part)
            mistakes += _locate_mistakes(part.errors, scanned, number, file, part)
    return Document(text, file, language, pipeline, scanned, tuple(parts), tuple(mistakes[: MISTAKES.most]))


def _language(file: str) -> Language:
    """Return the language of a file by the end of its name."""
    if file.endswith(".rules"):
        return "rules"
    return "rewrites" if file.endswith(".rewrites") else "program"


def _read_part(text: str, file: str, first_line: int, previous: TextPart | None) -> TextPart:
    """Parse a part of a text.

    An unchanged part without errors is reused. A part with errors is parsed again, because its lines may have moved.
    """
    if previous is not None and previous.text == text and previous.is_current and not previous.errors:
        return previous
    try:
        module = ir.parse(text, file, first_line, verify_module=False)
    except SpmdirError as error:
        syntax: list[tuple[Operation | None, SpmdirError]] = []
        for group in syntax_errors(text, file, first_line, error):
            syntax += [(None, syntax_error) for syntax_error in flat(group)]
        is_verified = previous is not None and previous.is_verified
        return TextPart(text, previous and previous.module, False, is_verified, tuple(syntax))
    errors: list[tuple[Operation | None, SpmdirError]] = []
    for op, error in mistakes(module):
        errors += [(op, error) for error in flat(error)]
        if len(errors) >= MISTAKES.most:
            break
    return TextPart(text, module, True, not errors, tuple(errors))


def _rule_errors(text: str, file: str, pipeline: Pipeline) -> Sequence[SpmdirError]:
    """Return the errors of a text of rules."""
    rules, strategies = read(text, file), read_strategies(text, file)
    return pipeline.rules.extended(rules, strategies).errors(rules, strategies)


def _rewrite_errors(text: str, file: str, pipeline: Pipeline) -> Sequence[SpmdirError]:
    """Return the errors of a text of rewrites."""
    from spmdir.rewrites.rewrite_text import parse_rewrites  # imports lark, which only rewrites need

    try:
        parse_rewrites(text, file)
    except SpmdirError as error:
        return flat(error)
    return ()


_ERRORS = {"rules": _rule_errors, "rewrites": _rewrite_errors}


def _locate_mistakes(
    errors: Sequence[tuple[Operation | None, SpmdirError]],
    scanned: Scan,
    number: int,
    file: str,
    part: TextPart | None = None,
) -> Iterator[Mistake]:
    """Yield the errors with their spans: the line of the op, else the place that the error names, else the start.

    Args:
        number: the index of the part of the text.
        part: the part, if it parsed.
    """
    for op, error in errors[: MISTAKES.most]:
        span = _span_of_op(op, scanned, number, part) if op is not None and part is not None else None
        if span is None and error.location is not None and error.location.file == file:
            start = scanned.offset(error.location.line - 1, error.location.column - 1)
            span = _span_at(start, scanned, is_op=op is not None)
        yield Mistake(span or TextSpan(0, 0), error.message)


def _span_at(start: int, scanned: Scan, is_op: bool) -> TextSpan:
    """Return the span of an error at `start`: an op to the end of its line, or one word."""
    if is_op:
        return TextSpan(start, max(scanned.code_end(start), start))
    word = WORD.match(scanned.text, start)
    return TextSpan(start, word.end() if word else min(start + 1, len(scanned.text)))


def _span_of_op(op: Operation, scanned: Scan, number: int, part: TextPart) -> TextSpan | None:
    """Return the span of the line that defines the result of an op. Its location may be in the source of the model."""
    function = op.parent_op()
    if not op.results or not isinstance(function, FuncOp):
        return None
    scope = NameScope(number, part.functions.index(function))
    definition = scanned.definition(scope, text_name(op.results[0])[1:])
    if definition is None:
        return None
    return TextSpan(definition.start, max(scanned.code_end(definition.start), definition.end))


def _values(function: FuncOp) -> dict[str, SSAValue]:
    """Return name without `%` → argument or result of an op; a declaration without a body has none."""
    arguments = function.args if function.body.blocks else ()
    results = [result for op in function.walk() for result in op.results]
    return {text_name(value)[1:]: value for value in (*arguments, *results)}
