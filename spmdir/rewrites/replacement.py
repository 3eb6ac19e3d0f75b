"""Replacements of the root of a match: graphs of ops that are not built yet, and their insertion into the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of, shardings_attr
from spmdir.dialects.collectives import Collective, WaitOp, collective_class
from spmdir.dialects.names import Names, copy_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.steps import Step


@attrs.frozen
class NewCollective:
    """A new collective, or its start, on a value or another node."""

    operand: Node
    step: Step
    is_start: bool = False

    @property
    def operands(self) -> tuple[Node, ...]:
        return (self.operand,)

    @property
    def sharding(self) -> Sharding:
        return self.step.target


@attrs.frozen
class NewWait:
    """A new wait for a started collective."""

    operand: Node

    @property
    def operands(self) -> tuple[Node, ...]:
        return (self.operand,)

    @property
    def sharding(self) -> Sharding:
        return sharding_at(self.operand)


@attrs.frozen
class Copy:
    """A copy of the local op `op` on other operands, with another sharding of its result.

    Attributes:
        sharding: the sharding of its only result.
    """

    op: AtenOp
    operands: tuple[Node, ...]
    sharding: Sharding


New = NewCollective | NewWait | Copy
"""A node of a replacement that is not in the program yet."""

Node = SSAValue | New
"""A node of a replacement: an existing value or a new op."""


def sharding_at(node: Node) -> Sharding:
    """Return the sharding of an existing or new value."""
    sharding = sharding_of(node) if isinstance(node, SSAValue) else node.sharding
    assert sharding is not None
    return sharding


def meta_at(node: Node) -> TensorMeta:
    """Return shape and element type of an existing or new value."""
    while isinstance(node, NewCollective | NewWait):
        node = node.operand
    value = node if isinstance(node, SSAValue) else node.op.results[0]
    meta = meta_of(value.type)
    assert meta is not None
    return meta


def new_nodes(replacement: Node) -> list[New]:
    """Return the distinct new nodes, operands first."""
    nodes: dict[New, None] = {}

    def visit(node: Node) -> None:
        """Add the new nodes that `node` consists of, operands first."""
        if not isinstance(node, SSAValue):
            for operand in node.operands:
                visit(operand)
            nodes[node] = None

    visit(replacement)
    return list(nodes)


def existing_values(replacement: Node) -> Iterator[SSAValue]:
    """Yield the existing values that the nodes use."""
    if isinstance(replacement, SSAValue):
        yield replacement
    else:
        for operand in replacement.operands:
            yield from existing_values(operand)


def find_dying_ops(ops: tuple[ValueOp, ...], replacement: Node) -> list[ValueOp]:
    """Return the ops among `ops` that are unused after `replacement` replaces the first of them.

    Args:
        ops: the matched ops, outermost first.
    """
    used_ops = {value.owner for value in existing_values(replacement)}
    dying = [ops[0]]
    for op in ops[1:]:
        uses = (use for result in op.results for use in result.uses)
        if op not in dying and op not in used_ops and all(use.operation in dying for use in uses):
            dying.append(op)
    return dying


def translate(node: Node, ops: Mapping[ValueOp, ValueOp], values: Mapping[SSAValue, SSAValue]) -> Node:
    """Return `node` with each op and value replaced by its image in `ops` and `values`."""
    if isinstance(node, SSAValue):
        return values[node]
    if isinstance(node, Copy):
        return Copy(ops[node.op], tuple(translate(operand, ops, values) for operand in node.operands), node.sharding)  # type: ignore
    return attrs.evolve(node, operand=translate(node.operand, ops, values))


def replace(root: ValueOp, replacement: Node, dying: list[ValueOp], names: Names) -> list[SSAValue]:
    """Insert `replacement` before `root`, let it replace the result of `root`, and remove the dying ops.

    A copy of a dying op gets the name of that op's result. A collective or wait that replaces a collective or wait gets
    the name of the replaced result. Any other new op gets a new name.

    Returns: the values whose users changed.
    """
    new_values: dict[Node, SSAValue] = {}
    for new in new_nodes(replacement):
        op = _make_op(new, new_values, root)
        new_values[new] = op.results[0]
        Rewriter.insert_op(op, InsertPoint.before(root))
        if isinstance(new, Copy) and new.op in dying:
            copy_name(op.results[0], new.op.results[0])
        elif new == replacement and isinstance(root, Collective | WaitOp):
            copy_name(op.results[0], root.results[0])
        else:
            source = new.op.results[0] if isinstance(new, Copy) else op.operands[0]
            names.assign_name(op.results[0], source, op.name.split(".")[1])
    result = _value_of(new_values, replacement)
    root.results[0].replace_all_uses_with(result)
    removed_values = {value for op in dying for value in op.results}
    touched = [value for op in dying for value in op.operands if value not in removed_values]
    for op in dying:
        Rewriter.erase_op(op)
    return [*touched, *existing_values(replacement), *new_values.values(), result]


def _make_op(new: New, new_values: Mapping[Node, SSAValue], root: ValueOp) -> Operation:
    """Return the op of a new node. `new_values` are the results of the nodes before it."""
    operands = [_value_of(new_values, operand) for operand in new.operands]
    if isinstance(new, NewCollective):
        return collective_class(new.step.kind, new.is_start).of_step(new.step, operands[0], root.location)
    if isinstance(new, NewWait):
        return WaitOp.build_op(operands, [meta_of(operands[0].type)], (), [new.sharding], location=root.location)
    properties = {**new.op.properties, "sharding": shardings_attr((new.sharding,))}
    return type(new.op).create(
        operands=operands,
        result_types=new.op.result_types,
        properties=properties,
        attributes=new.op.attributes,
        location=new.op.location,
    )


def _value_of(new_values: Mapping[Node, SSAValue], node: Node) -> SSAValue:
    """Return the value of an existing or new node."""
    return node if isinstance(node, SSAValue) else new_values[node]
