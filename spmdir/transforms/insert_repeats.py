"""Insert recomputations and copies to the host into a local program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from spmdir.analysis.local_programs.globalize import Unit
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.host_ops import HostCopyOp, OffloadOp, ReloadOp
from spmdir.dialects.names import Names, make_names_unique
from spmdir.dialects.recomputation import note_recomputation
from spmdir.schedule.program import Program
from spmdir.schedule.repeated_tasks import Repeat, tasks_with_repeats


def may_repeat(unit: Unit) -> bool:
    """Return whether a unit computes equal values if it runs again.

    Excluded are random ops, collectives with states, reductions over ranks (the order of their addends may differ), and
    starts and waits.
    """
    return all(map(_is_deterministic, unit))


def _is_deterministic(op: Operation) -> bool:
    """Return whether an op computes equal values if it runs again."""
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
    """Insert repeats into `function`, let later units use their results, and return the units of the result.

    For example, `%a = exp(%x)` is recomputed before its last user `%c = neg(%a)`. Then `%a.again = exp(%x)` is inserted
    before `%c = neg(%a.again)`. A copy to the host and back is inserted in the same way: an offload, and a reload.

    Args:
        program: the program of `function`. Its tasks are `units`.
        added: the repeats, sorted.
        values: buffer that may be copied → its value.
    """
    make_names_unique(function.body.block)  # recomputations refer to the original by name
    names, new_units = Names(function.body.block), list[Unit]()
    replacement: dict[SSAValue, SSAValue] = {}  # value → the value that later ops use in its place
    on_host: dict[SSAValue, SSAValue] = {}  # value → its copy on the host
    ops_to_insert: list[Operation] = []
    # Repeats come as (repeated task, repeat), and the tasks of the program as (task, None).
    for index, repeated in tasks_with_repeats(program, added):
        if repeated:  # collect the new ops, to be inserted before the next task of `program`
            if repeated.action == "run":
                new_ops = _clone_unit(units[index], replacement, names)
            else:
                value = (values or {})[repeated.buffer]
                new_ops = [_build_copy(value, replacement, on_host, names, repeated.action == "offload")]
            ops_to_insert += new_ops
            new_units.append(new_ops)
            continue
        Rewriter.insert_op(ops_to_insert, InsertPoint.before(units[index][0]))
        ops_to_insert = []
        for op in units[index]:
            for place, operand in enumerate(op.operands):
                if operand in replacement:
                    op.operands[place] = replacement[operand]
        new_units.append(units[index])
    return new_units


def _build_copy(
    value: SSAValue,
    replacement: dict[SSAValue, SSAValue],
    on_host: dict[SSAValue, SSAValue],
    names: Names,
    to_host: bool,
) -> Operation:
    """Return an op that copies a value to the host or back, and record its result.

    Args:
        replacement: value → the value that later ops use in its place. Updated by a copy back.
        on_host: value → its copy on the host. Updated by a copy to the host.
    """
    op = OffloadOp.copying(replacement.get(value, value)) if to_host else ReloadOp.copying(on_host[value])
    assert isinstance(value.owner, Operation)  # arguments are not copied
    op.location = value.owner.location
    (on_host if to_host else replacement)[value] = op.results[0]
    names.assign_name(op.results[0], value, "offload" if to_host else "reload")
    return op


def _clone_unit(unit: Unit, replacement: dict[SSAValue, SSAValue], names: Names) -> list[Operation]:
    """Return a copy of the ops of a unit, and record its results in `replacement`."""
    new_ops: list[Operation] = []
    for op in unit:
        repeat = type(op).create(
            operands=[replacement.get(operand, operand) for operand in op.operands],
            result_types=op.result_types,
            properties=op.properties,
            attributes=op.attributes,
            location=op.location,
        )
        note_recomputation(repeat, op)
        for old, new in zip(op.results, repeat.results, strict=True):
            names.assign_name(new, old, "again")
            replacement[old] = new
        new_ops.append(repeat)
    return new_ops
