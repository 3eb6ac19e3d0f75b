"""Matching and replacement of the rewrites of torch ops of `op_rewrite_text`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

import attrs
from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import RuleError
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import Names, copy_name
from spmdir.rewrites.op_rewrite_text import FUNCTIONS, OpRewrite, call_of
from spmdir.rules import RuleSet
from spmdir.rules.language.expressions import OPERATORS
from spmdir.rules.language.syntax_tree import Binary, Constant, Expression, Function, Name, OpCall, Sequence, Statement


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
        """Match `statement` with `op`, and bind its targets to the results.

        Raises:
            _Mismatch: they do not match.
        """
        self.match_call(call_of(statement), op)
        for target, result in zip(statement.targets, op.results, strict=False):
            self.bind(target, result)

    def match_call(self, call: OpCall, op: AtenOp) -> None:
        """Match the operands and the literal arguments of `call` with those of `op`, and add `op` to the matched ops.

        For example, `aten.sum.dim_IntList(x, dim)` matches `%2 = aten.sum.dim_IntList(%1) {dim = [0]}`, and binds x to
        %1 and dim to (0,). Raise _Mismatch if they do not match.

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
        expressions = {
            name or parameters[position][0]: expression for position, (name, expression) in enumerate(call.arguments)
        }
        for name, slot in rule.binding.tensors.items():
            if slot is None:
                continue  # absent, or a number
            expression = expressions.pop(name, None)
            if expression is None:
                raise _Mismatch
            self.match_operand(expression, slot, op)
        arguments = dict(op.argument)
        for name, expression in expressions.items():
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
            value = self.values[argument]
            return FUNCTIONS[expression.name](_meta(value), sum(1 for _ in value.uses))
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
    """Return the match of a rewrite whose root is `op`; None if there is none.

    The last statement of the pattern matches the root, and the walk continues through its operands. A statement that is
    not reached in this way, such as another use of the same operand, matches the first op of the block that fits.
    """
    match = _Match(rewrite, rules)
    try:
        match.match_statement(rewrite.pattern[-1], op)
        for statement in rewrite.pattern[:-1]:
            if not any(target in match.values for target in statement.targets):
                match = _match_elsewhere(match, statement, op)
        return match if match.holds() else None
    except (_Mismatch, RuleError):
        return None


def _match_elsewhere(match: _Match, statement: Statement, root: AtenOp) -> _Match:
    """Return `match` with a statement that the root does not use, matched with the first op of the block that fits.

    Raises:
        _Mismatch: no op fits.
    """
    assert root.parent is not None
    for op in root.parent.ops:
        if isinstance(op, AtenOp) and op is not root and op.name == call_of(statement).op:
            extended = attrs.evolve(match, values=dict(match.values), ops=dict(match.ops))
            with contextlib.suppress(_Mismatch, RuleError):
                extended.match_statement(statement, op)
                return extended
    raise _Mismatch


@attrs.define
class _Builder:
    """Builds the replacement of a match.

    Attributes:
        match: the match; its `values` also get the values that the replacement assigns.
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
            results = self.call(call_of(statement), statement.targets)
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
        call_structure = None if all(entry == 1 for entry in structure) else tuple(structure)
        inferred = rules.infer_call(call.op, tuple(map(_meta, operands)), arguments, call_structure)
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

    The replacement may use all values that the match binds. If one of them is computed after that op, and is not itself
    replaced, there is no such op: return None.
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
