"""A text as an editor has it: what its parts spell, and what is wrong with them."""

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
"""What a text is."""


@attrs.frozen
class Mistake:
    """What is wrong with a piece of a text, in the words of the tools."""

    span: TextSpan
    message: str


@attrs.frozen(eq=False, slots=False)
class TextPart:
    """What stands between two lines `// -----`.

    Attributes:
        text: of the part.
        module: that it spells, or spelled when it last did; None if it never did.
        is_current: whether `module` is what the text spells.
        is_verified: whether `module` is well formed.
        errors: what is wrong, and the op that it is about, if it could be read.
    """

    text: str
    module: ModuleOp | None
    is_current: bool
    is_verified: bool
    errors: tuple[tuple[Operation | None, SpmdirError], ...]

    @cached_property
    def functions(self) -> list[FuncOp]:
        """Return the functions of the module in the order of the text."""
        ops = self.module.body.block.ops if self.module is not None else ()
        return [op for op in ops if isinstance(op, FuncOp)]

    @cached_property
    def values(self) -> list[dict[str, SSAValue]]:
        """Return for each function its values by name, without `%`."""
        return [_values(function) for function in self.functions]


@attrs.frozen(eq=False, slots=False)
class Document:
    """A text that is open in an editor.

    Attributes:
        text: all of it.
        file: the name that messages give it.
        language: what it is.
        pipeline: whose plug-ins and machine it is read with.
        scan: the words of a program.
        parts: of a program.
        mistakes: in the order in which the tools find them.
    """

    text: str
    file: str
    language: Language
    pipeline: Pipeline
    scan: Scan
    parts: tuple[TextPart, ...]
    mistakes: tuple[Mistake, ...]

    def value(self, scope: NameScope, name: str) -> SSAValue | None:
        """Return a value by its name, without `%`, in the module that was read last."""
        function = self.function(scope)
        return None if function is None else self.parts[scope.part].values[scope.function or 0].get(name)

    def function(self, scope: NameScope) -> FuncOp | None:
        """Return the function of a scope in the module that was read last."""
        functions = self.parts[scope.part].functions if scope.part < len(self.parts) else []
        return functions[scope.function] if scope.function is not None and scope.function < len(functions) else None

    def module(self, scope: NameScope) -> ModuleOp | None:
        """Return the module around a scope that was read last."""
        return self.parts[scope.part].module if scope.part < len(self.parts) else None


def read_document(text: str, file: str, pipeline: Pipeline, previous: Document | None = None) -> Document:
    """Return a text as it is, however broken; what cannot be read of a part is that of the part in `previous`."""
    language = _language(file)
    too_long = len(text.encode(errors="replace")) > CHARACTERS.most
    found = scan("" if too_long else text)
    if too_long:
        error = Mistake(TextSpan(0, 0), CHARACTERS.error("more").message)
        return Document("", file, language, pipeline, found, (), (error,))
    with pipeline.rules:
        if language != "program":
            errors = [(None, error) for error in _ERRORS[language](text, file, pipeline)]
            return Document(text, file, language, pipeline, found, (), tuple(_placed(errors, found, 0, file)))
        before = previous.parts if previous is not None and previous.pipeline is pipeline else ()
        parts: list[TextPart] = []
        mistakes: list[Mistake] = []
        for number, (first_line, part) in enumerate(parts_of(text)):
            parts.append(_part(part, file, first_line, before[number] if number < len(before) else None))
            mistakes += _placed(parts[-1].errors, found, number, file, parts[-1])
    return Document(text, file, language, pipeline, found, tuple(parts), tuple(mistakes[: MISTAKES.most]))


def _language(file: str) -> Language:
    return "rules" if file.endswith(".rules") else "rewrites" if file.endswith(".rewrites") else "program"


def _part(text: str, file: str, first_line: int, previous: TextPart | None) -> TextPart:
    """Return what a part spells; errors are those of this text, so that an unchanged one is read again if it has some,
    since they name its lines."""
    if previous is not None and previous.text == text and previous.is_current and not previous.errors:
        return previous
    try:
        module = ir.parse(text, file, first_line, verify_module=False)
    except SpmdirError as error:
        found = [one for each in syntax_errors(text, file, first_line, error) for one in flat(each)]
        return TextPart(
            text,
            previous and previous.module,
            False,
            previous is not None and previous.is_verified,
            tuple((None, one) for one in found),
        )
    errors: list[tuple[Operation | None, SpmdirError]] = []
    for op, error in mistakes(module):
        errors += [(op, one) for one in flat(error)]
        if len(errors) >= MISTAKES.most:
            break
    return TextPart(text, module, True, not errors, tuple(errors))


def _rule_errors(text: str, file: str, pipeline: Pipeline) -> Sequence[SpmdirError]:
    rules, strategies = read(text, file), read_strategies(text, file)
    return pipeline.rules.extended(rules, strategies).errors(rules, strategies)


def _rewrite_errors(text: str, file: str, pipeline: Pipeline) -> Sequence[SpmdirError]:
    from spmdir.rewrites.rewrite_text import parse_rewrites  # lark, which only such files need

    try:
        parse_rewrites(text, file)
    except SpmdirError as error:
        return flat(error)
    return ()


_ERRORS = {"rules": _rule_errors, "rewrites": _rewrite_errors}


def _placed(
    errors: Sequence[tuple[Operation | None, SpmdirError]],
    found: Scan,
    number: int,
    file: str,
    part: TextPart | None = None,
) -> Iterator[Mistake]:
    for op, error in errors[: MISTAKES.most]:
        span = _span_of_op(op, found, number, part) if op is not None and part is not None else None
        if span is None and error.location is not None and error.location.file == file:
            start = found.offset(error.location.line - 1, error.location.column - 1)
            span = _span_at(start, found, is_op=op is not None)
        yield Mistake(span or TextSpan(0, 0), error.message)


def _span_at(start: int, found: Scan, is_op: bool) -> TextSpan:
    """Return what an error at `start` underlines: an op to the end of its line, or one word."""
    if is_op:
        return TextSpan(start, max(found.code_end(start), start))
    word = WORD.match(found.text, start)
    return TextSpan(start, word.end() if word else min(start + 1, len(found.text)))


def _span_of_op(op: Operation, found: Scan, number: int, part: TextPart) -> TextSpan | None:
    """Return the line of an op that makes a value; its location may be in the model's source."""
    function = op.parent_op()
    if not op.results or not isinstance(function, FuncOp):
        return None
    scope = NameScope(number, part.functions.index(function))
    defined = found.definition(scope, text_name(op.results[0])[1:])
    return None if defined is None else TextSpan(defined.start, max(found.code_end(defined.start), defined.end))


def _values(function: FuncOp) -> dict[str, SSAValue]:
    results = [result for op in function.walk() for result in op.results]
    return {text_name(value)[1:]: value for value in (*(function.args if function.body.blocks else ()), *results)}
