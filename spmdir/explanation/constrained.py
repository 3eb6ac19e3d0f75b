"""What constraints take that a program was asked for: the reshards from what is made to what users are given."""

from __future__ import annotations

from collections.abc import Iterator

from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import ConstraintOp, unresharded
from spmdir.explanation.decided import DecidedProgram
from spmdir.explanation.difference import Constrained
from spmdir.reshard.plan_tree import Planner, plan_tree


def other_constraints(before: DecidedProgram, after: DecidedProgram) -> Iterator[Constrained]:
    """Yield the constraints of a decided program that another does not have so."""
    known = {text_name(op.results[0]): op.target for op in _constraints(before)}
    root, problem = after.mesh.root or after.mesh, after.problem
    planner = Planner(root, problem.topology, problem.collectives)
    for op in _constraints(after):
        made, given, meta = op.source, op.target, meta_of(op.results[0].type)
        if made is None or given is None or meta is None or known.get(text_name(op.results[0])) == given:
            continue
        name = text_name(unresharded(op.operands[0]))
        if made == given:
            yield Constrained(name, made, given, (), 0.0)
            continue
        tree = plan_tree(meta, made, (given,), planner)
        yield Constrained(name, made, given, tuple(map(str, tree.steps.values())), tree.seconds)


def _constraints(program: DecidedProgram) -> Iterator[ConstraintOp]:
    return (op for op in ir.main_function(program.module).body.block.ops if isinstance(op, ConstraintOp))
