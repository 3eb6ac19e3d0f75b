"""The cost of each message of a program: collectives, and messages inside ops. Local steps, such as slice, are in
compute.py."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from xdsl.dialects.func import FuncOp

from spmdir.analysis.sent_messages import SentMessages
from spmdir.analysis.type_check import match
from spmdir.core.errors import Location
from spmdir.core.mesh import Mesh
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.report.op_costs import MEASURED, OpCost
from spmdir.report.op_sums import Share
from spmdir.report.torch_ops import torch_ops
from spmdir.reshard.cost import Terms, inner_terms, node_count
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet
from spmdir.search.joint_cost import communicating_groups


def collective_costs(function: FuncOp, messages: SentMessages) -> Iterator[OpCost]:
    """Yield the cost of each collective of a function that sends bytes."""
    for op in function.body.block.ops:
        message = messages.of(op)
        if message is not None:
            name, location = text_name(op.results[0]), location_of(op)
            yield _message_cost(name, message.kind, location, message.terms, message.axes, messages.topology)


def inner_costs(function: FuncOp, mesh: Mesh, rules: RuleSet, topology: Topology) -> Iterator[OpCost]:
    """Yield the cost of each message inside an op of a decided function: messages of rings, and of rows of experts.

    After localize, these messages are ops of local forms, and `collective_costs` yields their costs.
    """
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    for _, op in torch_ops(ops, mesh, rules):
        if op is None or op.rule is None:
            continue
        operands, results = ([sharding for _, sharding in types] for types in (op.needed, op.produced))
        if not op.rule.may_send(placement for sharding in (*operands, *results) for _, placement in sharding.entries):
            continue
        strategy_of_axis = match(op.rule, operands, results, mesh)
        refined_mesh = mesh.refine(strategy_of_axis)  # its axes include the sub-axes that strategies use
        strategies = [
            attrs.evolve(strategy, sent=op.rule.sent_tensors(strategy, refined_mesh.sizes[axis]))
            for axis, strategy in strategy_of_axis.items()
        ]
        for axes, strategy, sharded in communicating_groups(strategies, tuple(strategy_of_axis), refined_mesh):
            ranks, nodes = refined_mesh.group_size(axes), node_count(axes, refined_mesh)
            for sent in strategy.sent:
                terms = inner_terms(sent.op, sent.sent_bytes(sharded, ranks), ranks, nodes, topology)
                if ranks > 1:
                    kind = sent.op.removeprefix("spmd.")
                    yield _message_cost(op.name, kind, op.location, terms, axes, topology)


def _message_cost(
    name: str, kind: str, location: Location | None, terms: Terms, axes: tuple[str, ...], topology: Topology
) -> OpCost:
    """Return the cost of one message. Its bound is "measured" if the time is from a table of measured costs."""
    share = Share(1, terms.wire_bytes, terms.seconds, (terms.measured or topology.name,))
    return OpCost(name, kind, location, share, 0.0, 0.0, MEASURED if terms.measured else "network", axes)
