"""Build the global ops of a program from the ops of one rank, in order.

Each local value is in one of three states:

- It has a global value. This is the usual case.
- It consists of elements of a message that still have to be unpacked. A `Received` records which elements these are.
- It has no global value, such as a tensor that an op packs for a message. Its error is recorded, and is raised only if
  an op computes with the value.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor
from xdsl.ir import Operation, SSAValue

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.aten import op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import build_collective
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import copy_name
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.read_back.global_calls import CallTyper, NoStrategyError
from spmdir.read_back.group_axes import GroupTable
from spmdir.read_back.interpretations import Interpreter, global_value
from spmdir.read_back.local_ops import is_collective
from spmdir.read_back.misplaced_operands import collective_error, describe_failure
from spmdir.read_back.moved_elements import LocalRun, PackedMessage, is_move, pack, receive
from spmdir.read_back.rank_collectives import CollectiveCall, CollectiveTyper
from spmdir.read_back.rank_lookups import LOOKUP, Lookup, id_values, is_masked_lookup, may_mask, position_of_rows
from spmdir.rules import RuleSet
from spmdir.rules.local.expansion import Value

_REVISED = 8
"""The largest number of ops that get other global sizes, one at a time, so that a later op is legal."""

_CHOICES = 8
"""The largest number of global sizes that are tried for such an op."""


@attrs.frozen(eq=False)
class Received:
    """A value that consists of elements of a message.

    Attributes:
        message: the message.
        elements: the ids of these elements, as in `PackedMessage`.
    """

    message: PackedMessage
    elements: Tensor


class GlobalBuilder:
    """Builds the ops of the global program, one after the other, from the local ops of one rank.

    Args:
        rank: the index in the mesh of the rank whose program is read.
        groups: name of a process group → its mesh axes.

    Attributes:
        ops: the global ops, in order.
        _values: local value → its global value.
        _received: local value of an unpacked message → the elements that it consists of.
        _lookups: local value → the lookup in sharded rows that it is computed from, until a mask follows.
        _errors: local value without a global value → the error to raise if an op uses it.
    """

    def __init__(self, mesh: Mesh, rules: RuleSet, rank: int, groups: GroupTable):
        """Start without ops."""
        self.mesh, self.rules, self.rank, self.groups = mesh, rules, rank, groups
        self.ops: list[Operation] = []
        self._typer, self._collectives = CallTyper(mesh, rules, rank), CollectiveTyper(mesh)
        self._local = LocalRun()
        self._expanded: list[Operation] = []  # local ops outside of the block, kept while their results are used
        self._values: dict[SSAValue, SSAValue] = {}
        self._operands: dict[Operation, Sequence[SSAValue]] = {}  # local op → the operands of its global form
        self._interpreter = Interpreter(mesh, rank, self._typer, self._values.get, self._operands.get)
        self._received: dict[SSAValue, Received] = {}
        self._lookups: dict[SSAValue, Lookup] = {}
        self._errors: dict[SSAValue, SpmdirError] = {}
        self._done: list[ValueOp] = []  # the local ops that were added
        self._choices: dict[Operation, int] = {}  # local op → the number of its chosen global call, if not the first
        self._is_revising = False

    def set_value(self, local: SSAValue, value: SSAValue) -> None:
        """Set the global value of a local value. Both get the same name."""
        self._values[local] = value
        copy_name(value, local)

    def value(self, local: SSAValue) -> SSAValue:
        """Return the global value of a local value.

        Raises:
            SpmdirError: it has none. The error is that of the op or collective that computes it.
        """
        if local not in self._values:
            raise self._errors[local]
        return self._values[local]

    def add(self, op: ValueOp) -> None:
        """Add the global form of a local op.

        An op that packs or unpacks a message has no global form. A lookup in sharded rows gets one with its mask.
        The global sizes of an earlier view may be ambiguous: on tp = 2, `view(x, [6, 1, 4])` of [6, 8] <tp: S(1)> may
        be [6, 1, 8] or [6, 2, 4]. If the op is not legal with the first choice, other choices are tried.

        Raises:
            SpmdirError: the op is not legal on the shardings of its operands.
        """
        try:
            self._add(op)
        except SpmdirError:
            if self._is_revising or not self._revise(op):
                raise
        self._done.append(op)

    def _revise(self, op: ValueOp) -> bool:
        """Choose other global sizes of one earlier op, such as a view, so that `op` is legal.

        The chosen op, its users and `op` are added again. If no choice is legal, nothing changes.

        Returns:
            Whether a legal choice was found.
        """
        state = (self._values, self._operands, self._received, self._lookups, self._errors, self._choices)
        producers = all_producers_of(op)
        views = [view for view in reversed(self._done) if view in producers and self._has_sizes(view)]
        for view in views[:_REVISED]:
            users = users_of(view, [*self._done[self._done.index(view) + 1 :], op])
            for choice in range(1, _CHOICES):  # choice 0 led to the error
                before, op_count = [dict(entries) for entries in state], len(self.ops)
                self._choices[view], self._is_revising = choice, True
                try:
                    for user in (view, *users):
                        self._add(user)
                    return True
                except SpmdirError:
                    for entries, saved_entries in zip(state, before, strict=True):
                        entries.clear()
                        entries.update(saved_entries)  # type: ignore  # each gets its own entries
                    del self.ops[op_count:]
                finally:
                    self._is_revising = False
        return False

    def _has_sizes(self, op: ValueOp) -> bool:
        """Return whether an op has sizes as arguments, and a sharded operand."""
        is_sized = bool(self.rules.shape_arguments(op.name) & op.argument.keys()) and op in self._operands
        return is_sized and any(sharding_of(operand).entries for operand in self._operands[op])  # type: ignore

    def _add(self, op: ValueOp) -> None:
        """Add the global form of a local op, by the first of these cases that applies.

        A collective is a message. A move of received elements unpacks a message. An op on the result of a lookup in
        sharded rows may be its mask. All other ops get global types; if that fails, a move may pack a message.
        """
        if is_collective(op):
            self._add_message(op)
            return
        # Moves of received elements, or of values without a global value, unpack a message.
        is_part = is_move(op) and any(operand in self._received for operand in op.operands)
        if is_part or (is_move(op) and any(operand not in self._values for operand in op.operands)):
            self._add_unpacking(op)
            if is_part and all(operand in self._values for operand in op.operands):
                self._add_whole(op)
            return
        if may_mask(op) and any(operand in self._lookups for operand in op.operands):
            self._add_mask(op)
            return
        operands = [self.value(operand) for operand in op.operands]
        try:
            self._add_call(op, operands)
        except SpmdirError as error:
            located = error.at(location_of(op))
            if op.name == LOOKUP and self._start_lookup(op, operands):
                self._errors[op.results[0]] = located  # raised if no mask follows
                return
            if not is_move(op):
                raise located from None
            # The op may pack a message. Then only its elements matter, and the error is never raised.
            self._errors.update(dict.fromkeys(op.operands, located))
            self._add_unpacking(op)

    def _add_call(self, op: ValueOp, operands: Sequence[SSAValue]) -> None:
        """Add a torch op or a constant with global types."""
        if isinstance(op, ConstantOp):
            new = op.clone({})
            new.set_shardings([Sharding((), self.mesh.name)])
            self._append(new, op.results)
            return
        try:
            self._add_typed(op, operands)
        except NoStrategyError as error:
            if not self._add_reinterpreted(op, operands) and not self._add_expansion(op):
                raise describe_failure(op, operands, error, self.mesh) from None

    def _add_typed(self, op: ValueOp, operands: Sequence[SSAValue], before: Sequence[Operation] = ()) -> None:
        """Add a torch op on the global `operands`, after the new ops `before` that compute some of them.

        Raises:
            NoStrategyError: the op is not legal on the shardings of the operands. Then nothing is added.
        """
        call = self._typer.infer(op, list(map(global_value, operands)), number=self._choices.get(op, 0))
        self.ops += before
        self._operands[op] = operands
        global_op = op_class(op.name).build_op(
            operands, call.call.results, call.call.arguments, call.shardings, call.call.structure, op.location
        )
        self._append(global_op, op.results)

    def _add_reinterpreted(self, op: ValueOp, operands: Sequence[SSAValue]) -> bool:
        """Add an op that is legal if one or two operands, or its result, are interpreted as shards or summands.

        Returns:
            Whether such an interpretation exists.
        """
        for axis in self.mesh.axis_names if len(op.results) == 1 else ():
            for part in self._interpreter.part_of_rank(op, operands, op.results[0], axis):
                self.ops += part.ops
                self.set_value(op.results[0], part.value)
                return True
        for axis in self.mesh.axis_names:
            single = [
                (index, interpretation)
                for index, operand in enumerate(op.operands)
                for interpretation in self._interpreter.interpretations(operand, axis)
            ]
            pairs = [(first, second) for first, second in itertools.combinations(single, 2) if first[0] != second[0]]
            for replacements in [*((replacement,) for replacement in single), *pairs]:
                replaced = list(operands)
                new_ops: list[Operation] = []
                for index, interpretation in replacements:
                    replaced[index] = interpretation.value
                    new_ops += interpretation.ops
                try:
                    self._add_typed(op, replaced, new_ops)
                except NoStrategyError:
                    continue
                return True
        return False

    def _add_expansion(self, op: ValueOp) -> bool:
        """Add the ops of the `expand` clause of the rule of an op, on local sizes; return whether they are legal.

        For example, the mean of a shard is the sum of the shard, divided by the number of elements of the shard.
        """
        rules = self.rules.alternatives(op.name)
        if not any(clause.kind == "expand" for rule in rules for clause in rule.clauses):
            return False
        op_count = len(self.ops)
        try:
            rule = self.rules.instantiate(op.call())
            assert rule is not None  # it has alternatives
            expansion = rule.expansion(0).without_unused()
            values = {Value("operand", index): operand for index, operand in enumerate(op.operands)}
            for number, expanded in enumerate(expansion.ops):
                call = expanded.call
                local_op = op_class(call.name).build_op(
                    [values[value] for value in expanded.operands],
                    call.results,
                    call.arguments,
                    structure=call.structure,
                    location=op.location,
                )
                self._expanded.append(local_op)
                self._add(local_op)
                values.update({Value("op", number, index): result for index, result in enumerate(local_op.results)})
            for result, value in zip(op.results, expansion.results, strict=True):
                if value is not None:
                    self.set_value(result, self.value(values[value]))
        except SpmdirError:
            del self.ops[op_count:]
            return False
        return True

    def _start_lookup(self, op: ValueOp, operands: Sequence[SSAValue]) -> bool:
        """Record a lookup in a table with sharded rows, to be imported with the op that masks its result.

        Returns:
            Whether the rows of the table are sharded, so that a mask may follow.
        """
        axes = global_value(operands[0]).sharding.dim_axes(0)
        ids = next((value for value in id_values(op) if value in self._values), None)
        if not axes or ids is None or any(axis not in self.mesh.axis_names for axis in axes):
            return False
        count, position = position_of_rows(axes, self.mesh.sizes, self.mesh.coordinate(self.rank))
        self._lookups[op.results[0]] = Lookup(op, ids, count, position)
        return True

    def _add_mask(self, op: ValueOp) -> None:
        """Add the lookup in the whole table, if `op` is the last op that sets the rows of other ranks to zero."""
        lookup = next(self._lookups[operand] for operand in op.operands if operand in self._lookups)
        result = op.results[0]
        self._lookups[result], self._errors[result] = lookup, self._errors[lookup.op.results[0]]
        if is_masked_lookup(lookup, result, self._local):
            table, ids = self._values[lookup.op.operands[0]], self._values[lookup.ids]
            call = self._typer.infer(lookup.op, [global_value(table), global_value(ids)], rewrites=("local",))
            new = op_class(LOOKUP).build_op(
                [table, ids], call.call.results, call.call.arguments, call.shardings, location=lookup.op.location
            )
            self._append(new, op.results)

    def _append(self, op: Operation, locals_: Sequence[SSAValue]) -> None:
        """Append an op whose results are the global values of `locals_`."""
        self.ops.append(op)
        for local, result in zip(locals_, op.results, strict=True):
            self.set_value(local, result)

    def _add_message(self, op: ValueOp) -> None:
        """Add the message of a collective. Its results may have to be unpacked first."""
        axes = self.groups.axes_of(_group_name(op))
        group = tuple(sorted(self.mesh.group(self.rank, axes)))
        message = pack(op, axes, group, group.index(self.rank), self._local)
        if message is None:
            raise ShardingError(
                f"'{op.name}' sends too many elements to follow each of them; expected fewer elements: "
                "trace the ranks with smaller inputs",
                location_of(op),
            )
        self._errors[op.results[0]] = self._message_error(message)
        elements = receive(message)
        if elements is not None:
            self._receive(op.results[0], message, elements)

    def _add_unpacking(self, op: ValueOp) -> None:
        """Record which elements of a message an unpacking op returns. A complete tensor of the message gets a value."""
        parts = [self._received.get(operand) for operand in op.operands]
        errors = [self._message_error(part.message) for part in parts if part is not None]
        errors += [self._errors[operand] for operand in op.operands if operand in self._errors]
        self._errors.update(dict.fromkeys(op.results, errors[0]))
        messages = {id(part.message) for part in parts if part is not None}
        if len(messages) != 1 or None in parts:
            return
        results = self._local.run(op, [part.elements for part in parts if part is not None])
        for result, elements in zip(op.results, results, strict=True):
            self._receive(result, parts[0].message, elements)  # type: ignore  # no part is None

    def _add_whole(self, op: ValueOp) -> None:
        """Add a move of a value that is a whole message, if its results are not tensors of the message."""
        if all(result in self._values for result in op.results):
            return
        try:
            self._add_call(op, [self.value(operand) for operand in op.operands])
        except SpmdirError:
            return  # its results are parts of the message

    def _receive(self, local: SSAValue, message: PackedMessage, elements: Tensor) -> None:
        """Record the received elements of a local value. If they are the result of a collective, add it."""
        self._received[local] = Received(message, elements)
        for source, packed in message.packed.items():
            if source in self._values and self._add_matching(local, message, self._values[source], packed, elements):
                return
        for source, packed in message.packed.items():
            for axis in message.axes[:1]:  # an interpretation changes the placement on one axis
                for interpretation in self._interpreter.interpretations(source, axis):
                    op_count = len(self.ops)
                    self.ops += interpretation.ops
                    if self._add_matching(local, message, interpretation.value, packed, elements):
                        return
                    del self.ops[op_count:]

    def _add_matching(
        self, local: SSAValue, message: PackedMessage, value: SSAValue, packed: Tensor, elements: Tensor
    ) -> bool:
        """Add the collective of `value` that results in the received elements; return whether there is one.

        Args:
            local: the local value that consists of the received elements.
            packed: the ids of the elements of `value` in the message.
            elements: the ids of the received elements.
        """
        known = global_value(value)
        for call, expected in self._collectives.calls(message, known.meta, known.sharding, packed):
            if expected.shape == elements.shape and bool((expected == elements).all()):
                self.set_value(local, self._add_collective(call, value, message.op, local))
                return True
        return False

    def _add_collective(self, call: CollectiveCall, value: SSAValue, op: ValueOp, local: SSAValue) -> SSAValue:
        """Add the ops of a collective on the global `value`, and return the global value of `local`.

        The ranks may scale the result, as for an average; then a multiplication by `call.factor` follows.
        """
        for step in call.steps:
            new = build_collective(step, value, op.location)
            self.ops.append(new)
            value = new.results[0]
        if call.factor != 1:
            name = "aten.mul.Scalar" if call.factor > 1 else "aten.div.Scalar"
            number = call.factor if call.factor > 1 else 1 / call.factor
            scaled = op_class(name).build_op(
                [value], [meta_of(value.type)], (("other", number),), [sharding_of(value)], location=op.location
            )
            self.ops.append(scaled)
            value = scaled.results[0]
        return value

    def _message_error(self, message: PackedMessage) -> SpmdirError:
        """Return the error for the case that no collective results in the elements that the program unpacks."""
        source = next((value for value in message.packed if value in self._values), None)
        if source is None:
            return self._errors.get(message.op.operands[0]) or collective_error(
                message.op, message.axes, None, self.mesh
            )
        sharding = global_value(self._values[source]).sharding
        return collective_error(message.op, message.axes, sharding, self.mesh)


def all_producers_of(op: Operation) -> set[Operation]:
    """Return the transitive producers of an op: the ops that compute its operands, their operands, and so on."""
    producers: set[Operation] = set()
    remaining = [operand.owner for operand in op.operands]
    while remaining:
        producer = remaining.pop()
        if isinstance(producer, Operation) and producer not in producers:
            producers.add(producer)
            remaining += [operand.owner for operand in producer.operands]
    return producers


def users_of(op: Operation, later: Sequence[ValueOp]) -> list[ValueOp]:
    """Return those ops of `later` that depend on `op`, directly or through other ops.

    Args:
        later: ops in program order, all after `op`.
    """
    dependent: set[Operation] = {op}
    users = []
    for user in later:
        if any(operand.owner in dependent for operand in user.operands):
            dependent.add(user)
            users.append(user)
    return users


def _group_name(op: ValueOp) -> Any:
    return op.argument["group_name"]
