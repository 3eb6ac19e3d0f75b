"""Units of the program of one rank that run again before later uses, and values that come back from the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from spmdir.analysis.local_programs.globalize import Unit
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.host import HostCopyOp, OffloadOp, ReloadOp
from spmdir.dialects.names import Names, distinguish
from spmdir.dialects.recomputation import note_recomputation
from spmdir.schedule.program import Program
from spmdir.schedule.repeated_tasks import Repeat, tasks_with_repeats


def may_repeat(unit: Unit) -> bool:
    """Return whether ops give the same values when they run again: no random numbers, states or sums of ranks, whose
    terms may come in another order, and nothing that is in flight."""
    return all(map(_gives_the_same, unit))


def _gives_the_same(op: Operation) -> bool:
    if isinstance(op, Collective):
        return op.may_repeat and not op.IS_START
    return is_side_effect_free(op) and not isinstance(op, (WaitOp, HostCopyOp))


def repeat(
    function: FuncOp,
    program: Program,
    units: Sequence[Unit],
    added: Sequence[Repeat],
    values: Mapping[int, SSAValue] | None = None,
) -> list[Unit]:
    """Let units of `function` run again or be copied, and later ones use what these give; return the units of the
    result.

    Args:
        program: that of `function`, whose tasks are `units`.
        values: buffer that may be copied → its value.
    """
    distinguish(function.body.block)  # what runs again is noted by name
    names, found = Names(function.body.block), list[Unit]()
    latest: dict[SSAValue, SSAValue] = {}
    on_host: dict[SSAValue, SSAValue] = {}
    waiting: list[Operation] = []
    for index, repeated in tasks_with_repeats(program, added):
        if repeated:
            if repeated.action == "run":
                made = _again(units[index], latest, names)
            else:
                value = (values or {})[repeated.buffer]
                made = [_copied(value, latest, on_host, names, repeated.action == "offload")]
            waiting += made
            found.append(made)
            continue
        Rewriter.insert_op(waiting, InsertPoint.before(units[index][0]))
        waiting = []
        for op in units[index]:
            for place, operand in enumerate(op.operands):
                if operand in latest:
                    op.operands[place] = latest[operand]
        found.append(units[index])
    return found


def _copied(
    value: SSAValue,
    latest: dict[SSAValue, SSAValue],
    on_host: dict[SSAValue, SSAValue],
    names: Names,
    to_host: bool,
) -> Operation:
    """Return the op that copies a value to the host or back, and tell `on_host` or `latest` of its result."""
    op = OffloadOp.copying(latest.get(value, value)) if to_host else ReloadOp.copying(on_host[value])
    assert isinstance(value.owner, Operation)  # arguments are not copied
    op.location = value.owner.location
    (on_host if to_host else latest)[value] = op.results[0]
    names.give(op.results[0], value, "offload" if to_host else "reload")
    return op


def _again(unit: Unit, latest: dict[SSAValue, SSAValue], names: Names) -> list[Operation]:
    """Return the ops of a unit once more, and tell `latest` that their results take the place of the unit's."""
    made: list[Operation] = []
    for op in unit:
        repeat = type(op).create(
            operands=[latest.get(operand, operand) for operand in op.operands],
            result_types=op.result_types,
            properties=op.properties,
            attributes=op.attributes,
            location=op.location,
        )
        note_recomputation(repeat, op)
        for old, new in zip(op.results, repeat.results, strict=True):
            names.give(new, old, "again")
            latest[old] = new
        made.append(repeat)
    return made
