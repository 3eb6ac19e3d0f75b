"""Rewrites of torch ops in a program on one device, as text: the pattern and the replacement are statements of ops.

    gather-rows:
        order, counts, arrivals = experts.route(ids, experts=experts)
        rows = aten.index.Tensor(x, [aten.floor_divide(order, other=k)])
      becomes
        rows = experts.sort_rows(aten.expand(aten.unsqueeze(x, dim=1), size=[first(x), k, last(x)]), order)
      when k == last(ids)

The last statement of a pattern is its root, and the others are ops that the root uses. A name stands for a value or a
literal, the same one wherever it occurs. Values that both sides assign are replaced. The ops of the pattern remain if
they have other users.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import Location, ParseError, RuleError
from spmdir.core.parse_cache import ParsedTexts
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import Names, copy_name
from spmdir.rules import RuleSet
from spmdir.rules.language.expressions import OPERATORS
from spmdir.rules.language.parser import parse_condition, parse_statements
from spmdir.rules.language.syntax_tree import (
    Binary,
    Constant,
    Expression,
    Function,
    Name,
    OpCall,
    Sequence,
    Statement,
)

_HEAD = re.compile(r"([a-z][a-z0-9-]*):\s*$")
_BECOMES = "becomes"
_WHEN = "when "

FUNCTIONS = {
    "rank": lambda meta: meta.rank,
    "first": lambda meta: meta.shape[0] if meta.shape else 1,
    "last": lambda meta: meta.shape[-1] if meta.shape else 1,
    "elements": lambda meta: meta.numel,
    "dtype": lambda meta: meta.dtype,
    "integral": lambda meta: not meta.dtype.is_inexact,
}
"""Function of a tensor in a condition or an argument → its value from the type of the tensor."""


@attrs.frozen
class OpRewrite:
    """One rewrite.

    Attributes:
        name: its name.
        pattern: the statements that must match; the last one is the root.
        replacement: the statements that replace them.
        conditions: expressions that must hold.
        location: the line of its name.
    """

    name: str
    pattern: tuple[Statement, ...]
    replacement: tuple[Statement, ...]
    conditions: tuple[Expression, ...]
    location: Location

    @property
    def root(self) -> OpCall:
        """Return the call of the last statement of the pattern."""
        return _call(self.pattern[-1])

    @property
    def replaced(self) -> tuple[str, ...]:
        """Return the names of the replaced values: those that both sides assign."""
        assigned = {target for statement in self.pattern for target in statement.targets}
        return tuple(target for statement in self.replacement for target in statement.targets if target in assigned)


def _call(statement: Statement) -> OpCall:
    """Return the call on the right side of a statement."""
    (value,) = statement.values
    assert isinstance(value, OpCall)  # `_parse_rewrite` has checked it
    return value


def parse_op_rewrites(text: str, file: str) -> tuple[OpRewrite, ...]:
    """Parse a file of rewrites of ops. Each begins with its name in a line such as `gather-rows:`.

    Raises:
        ParseError: the text is malformed; located.
    """
    heads: list[tuple[int, str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        match = _HEAD.match(line)
        if match is not None:
            heads.append((number, match[1]))
        elif not heads and line.strip() and not line.startswith("#"):
            raise ParseError(f"found '{line.strip()}', expected the name of a rewrite, such as `gather-rows:`",
                             Location(file, number, 1))  # fmt: skip
    ends = [number for number, _ in heads[1:]] + [len(lines) + 1]
    return tuple(
        _parse_rewrite(name, lines[number : end - 1], Location(file, number, 1))
        for (number, name), end in zip(heads, ends, strict=True)
    )


def _parse_rewrite(name: str, lines: list[str], location: Location) -> OpRewrite:
    """Parse the lines of one rewrite: statements, `becomes`, statements, and conditions from the first `when` on.

    Args:
        location: the line of the name, which is the line before `lines`.

    Raises:
        ParseError: `becomes` is missing or occurs twice, or a statement is not a call of an op; located.
    """
    words = [line.strip() for line in lines]
    if words.count(_BECOMES) != 1:
        raise ParseError(f"rewrite '{name}' has {words.count(_BECOMES)} lines `becomes`; expected one", location)
    middle = words.index(_BECOMES)
    first_condition = next((n for n, word in enumerate(words) if word.startswith(_WHEN)), len(words))
    file, first_line = location.file, location.line + 1
    pattern = parse_statements("\n".join(lines[:middle]) + "\n", file, first_line)
    replacement = parse_statements("\n".join(lines[middle + 1 : first_condition]) + "\n", file, first_line + middle + 1)
    conditions = [
        parse_condition(word.removeprefix(_WHEN), file, first_line + number, lines[number].find(word) + len(_WHEN))
        for number, word in enumerate(words)
        if number >= first_condition and word and not word.startswith("#")
    ]
    for statement in (*pattern, *replacement):
        if len(statement.values) != 1 or not isinstance(statement.values[0], OpCall) or not statement.targets:
            raise ParseError(
                f"a statement of rewrite '{name}' is not an assignment of one call of an op; expected a statement such "
                "as `y = aten.relu(x)`",
                statement.location,
            )
    return OpRewrite(name, pattern, replacement, tuple(conditions), location)


EXPERTS = Path(__file__).with_name("experts.op_rewrites")
"""The shipped rewrites of a mixture of experts."""

PARSED = ParsedTexts(
    EXPERTS.with_suffix(".parsed"), (OpRewrite, Statement, OpCall, Name, Constant, Function, Binary, Sequence)
)
"""The parsed form of the shipped rewrites; `make parsed-texts` writes it."""


def load_op_rewrites(path: Path) -> tuple[OpRewrite, ...]:
    """Return the rewrites in the file at `path`."""
    text = path.read_text(encoding="utf-8")
    parsed = PARSED.find(text, path.name)
    return parse_op_rewrites(text, path.name) if parsed is None else parsed


class _Mismatch(Exception):
    """An op does not match a pattern. All methods `match_…` and `bind` of `_Match` raise it."""


@attrs.define
class _Match:
    """The matched values and ops of a rewrite.

    Attributes:
        rewrite: the rewrite.
        rules: the rules of ops.
        values: name → the value or literal for which it stands.
        ops: the matched ops.
    """

    rewrite: OpRewrite
    rules: RuleSet
    values: dict[str, Any] = attrs.field(factory=dict)
    ops: dict[AtenOp, None] = attrs.field(factory=dict)

    def match_statement(self, statement: Statement, op: AtenOp) -> None:
        """Match the call of `statement` with `op`, and bind its targets to the results of `op`."""
        self.match_call(_call(statement), op)
        for target, result in zip(statement.targets, op.results, strict=False):
            self.bind(target, result)

    def match_call(self, call: OpCall, op: AtenOp) -> None:
        """Match the operands and the literal arguments of `call` with those of `op`, and add `op` to the matched ops.

        Each argument of `op` must be in `call`. So an argument that a pattern leaves out must have its default, which
        an op does not store.
        """
        if op.name != call.op:
            raise _Mismatch
        self.ops.setdefault(op)
        rule = self.rules.instantiate(op.call())
        if rule is None:
            raise _Mismatch
        parameters = self.rules.parameters(op.name)
        named = {
            name or parameters[position][0]: expression for position, (name, expression) in enumerate(call.arguments)
        }
        for name, slot in rule.binding.tensors.items():
            if slot is None:
                continue  # absent, or a number
            expression = named.pop(name, None)
            if expression is None:
                raise _Mismatch
            self.match_operand(expression, slot, op)
        arguments = dict(op.argument)
        for name, expression in named.items():
            if name not in arguments:
                raise _Mismatch
            self.match_literal(expression, arguments.pop(name))
        if arguments:
            raise _Mismatch

    def match_operand(self, expression: Expression, slot: Any, op: AtenOp) -> None:
        """Match an expression with an operand of `op`, or a list of expressions with a list of operands.

        Args:
            slot: the index of the operand, or a tuple of slots for a list.
        """
        if isinstance(expression, Sequence):
            if not isinstance(slot, tuple) or len(slot) != len(expression.items):
                raise _Mismatch
            for item, position in zip(expression.items, slot, strict=True):
                self.match_operand(item, position, op)
        elif not isinstance(slot, int):
            raise _Mismatch
        else:
            self.match_value(expression, op.operands[slot])

    def match_value(self, expression: Expression, value: SSAValue) -> None:
        """Match an expression with a value.

        A call matches the first result of such an op. A name that a statement of the pattern assigns matches the result
        of such an op, too. Any other name is bound to the value.
        """
        owner = value.owner
        if isinstance(expression, OpCall):
            if not isinstance(owner, AtenOp) or value is not owner.results[0]:
                raise _Mismatch
            self.match_call(expression, owner)
        elif isinstance(expression, Name):
            definition = self._definition(expression.name)
            if expression.name in self.values or definition is None:
                self.bind(expression.name, value)
            elif isinstance(owner, AtenOp):
                self.match_statement(definition, owner)
                self.bind(expression.name, value)
            else:
                raise _Mismatch
        else:
            raise _Mismatch

    def _definition(self, name: str) -> Statement | None:
        """Return the statement of the pattern, other than the root, that assigns `name`; None if there is none."""
        return next((statement for statement in self.rewrite.pattern[:-1] if name in statement.targets), None)

    def match_literal(self, expression: Expression, literal: Any) -> None:
        """Match an expression with a literal argument. A name is bound to the literal, unless it names a dtype."""
        if isinstance(expression, Sequence):
            if not isinstance(literal, (tuple, list)) or len(literal) != len(expression.items):
                raise _Mismatch
            for item, entry in zip(expression.items, literal, strict=True):
                self.match_literal(item, entry)
        elif isinstance(expression, Name) and expression.name not in DTYPES:
            self.bind(expression.name, literal)
        elif self.evaluate(expression) != literal:
            raise _Mismatch

    def bind(self, name: str, value: Any) -> None:
        """Let `name` stand for a value or literal. If it already stands for something else, the match fails."""
        current = self.values.setdefault(name, value)
        is_same = current is value if isinstance(value, SSAValue) else current == value
        if not is_same:
            raise _Mismatch

    def evaluate(self, expression: Expression) -> Any:
        """Return the value of an expression that calls no op."""
        if isinstance(expression, Constant):
            return expression.value
        if isinstance(expression, Name):
            return self.values[expression.name] if expression.name in self.values else DTYPES[expression.name]
        if isinstance(expression, Sequence):
            return tuple(map(self.evaluate, expression.items))
        if isinstance(expression, Function):
            (argument,) = expression.arguments
            return FUNCTIONS[expression.name](_meta(self.values[argument]))
        assert isinstance(expression, Binary)
        left, right = self.evaluate(expression.left), self.evaluate(expression.right)
        return left and right if expression.operator == "and" else OPERATORS[expression.operator](left, right)

    def holds(self) -> bool:
        """Return whether all conditions of the rewrite hold."""
        return all(self.evaluate(condition) for condition in self.rewrite.conditions)


def _meta(value: SSAValue) -> TensorMeta:
    """Return the type of a tensor; raise _Mismatch for a value that is not a tensor."""
    meta = meta_of(value.type)
    if meta is None:
        raise _Mismatch
    return meta


def find_match(rewrite: OpRewrite, op: AtenOp, rules: RuleSet) -> _Match | None:
    """Return the match of a rewrite whose root is `op`; None if there is none."""
    match = _Match(rewrite, rules)
    try:
        match.match_statement(rewrite.pattern[-1], op)
        return match if match.holds() else None
    except (_Mismatch, RuleError):
        return None


@attrs.define
class _Builder:
    """Builds the replacement of a match.

    Attributes:
        anchor: the op before which the new ops are inserted. They get its location.
        names: the value names of the block. Updated.
    """

    match: _Match
    anchor: AtenOp
    names: Names

    def build(self) -> None:
        """Insert the ops of the replacement, and let the users of replaced values use the new values."""
        match, old = self.match, dict(self.match.values)
        for statement in match.rewrite.replacement:
            results = self.call(_call(statement), statement.targets)
            match.values.update(zip(statement.targets, results, strict=False))
        for name in match.rewrite.replaced:
            old_value, new_value = old[name], match.values[name]
            old_value.replace_all_uses_with(new_value)
            copy_name(new_value, old_value)

    def call(self, call: OpCall, targets: tuple[str, ...] = ()) -> tuple[SSAValue, ...]:
        """Build the op of `call`, and return its results.

        Args:
            targets: the names of the results in the rewrite, from which the names of new values are made.
        """
        rules = self.match.rules
        parameters = rules.parameters(call.op)
        value_by_parameter = {
            name or parameters[position][0]: self.argument(expression)
            for position, (name, expression) in enumerate(call.arguments)
        }
        structure: list[int | tuple[int, ...]] = []  # of each tensor parameter: 1, 0 if absent, or (1, …) for a list
        operands: list[SSAValue] = []
        for name, is_tensor in parameters:
            if not is_tensor:
                continue
            value = value_by_parameter.pop(name, None)
            if isinstance(value, tuple):
                structure.append((1,) * len(value))
                operands += value
            elif value is not None:
                structure.append(1)
                operands.append(value)
            else:
                structure.append(0)
        arguments = {name: value for name, value in value_by_parameter.items() if value is not None}
        shape = None if all(entry == 1 for entry in structure) else tuple(structure)
        inferred = rules.infer_call(call.op, tuple(map(_meta, operands)), arguments, shape)
        op = op_class(call.op).build_op(
            operands, inferred.results, inferred.arguments, None, inferred.structure, self.anchor.location
        )
        Rewriter.insert_op(op, InsertPoint.before(self.anchor))
        suffixes = itertools.chain(targets, itertools.repeat(call.op.split(".")[1]))
        for result, suffix in zip(op.results, suffixes, strict=False):
            self.names.assign_name(result, self.anchor.results[0], suffix)
        return tuple(op.results)

    def argument(self, expression: Expression) -> Any:
        """Return the value of an argument of a call. An inner call is built, and its first result is the value."""
        if isinstance(expression, OpCall):
            return self.call(expression)[0]
        return self.match.evaluate(expression)


def apply_op_rewrites(block: Block, rewrites: Iterable[OpRewrite], rules: RuleSet) -> bool:
    """Apply the rewrites in order, each at every op that it matches. Ops that are then unused are erased.

    Returns: whether any rewrite was applied.
    """
    names, has_changed = Names(block), False
    for rewrite in rewrites:
        for op in list(block.ops):
            if isinstance(op, AtenOp) and op.parent is not None and op.name == rewrite.root.op:
                match = find_match(rewrite, op, rules)
                anchor = None if match is None else _anchor(match, block)
                if match is not None and anchor is not None:
                    _Builder(match, anchor, names).build()
                    _erase_unused(reversed(match.ops))
                    has_changed = True
    return has_changed


def _anchor(match: _Match, block: Block) -> AtenOp | None:
    """Return the op before which the replacement is built: the first op with a replaced result.

    None if a value that the match binds, and that is not replaced, is defined after that op.
    """
    position = {op: number for number, op in enumerate(block.ops)}
    replaced = [match.values[name].owner for name in match.rewrite.replaced]
    anchor = min(replaced, key=lambda op: position[op])
    assigned = {target for statement in match.rewrite.pattern for target in statement.targets}
    used = [
        value
        for name, value in match.values.items()
        if isinstance(value, SSAValue) and (name not in assigned or value.owner not in replaced)
    ]
    owners = [value.owner for value in used if isinstance(value.owner, AtenOp)]
    return anchor if all(position[owner] < position[anchor] for owner in owners) else None


def _erase_unused(ops: Iterable[AtenOp]) -> None:
    """Erase those of `ops` that have no users, and all producers of their operands that then have none."""
    pending = list(ops)
    while pending:
        op = pending.pop()
        if op.parent is None or any(result.uses for result in op.results):
            continue
        pending += [operand.owner for operand in op.operands if isinstance(operand.owner, AtenOp)]
        Rewriter.erase_op(op)
