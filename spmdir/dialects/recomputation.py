"""The note on an op that repeats the work of another one, so that what that gave need not be held, and its check.

    %silu.again = aten.silu(%mm) : tensor<4x8xf32> <> attributes {spmd.recomputes = "silu"}

The name is that of the first result of the op whose work is repeated. A collective that only moves data gives the same
in a bucket as alone, and waited for as at once; so the note holds, whatever became of either.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import is_side_effect_free

from spmdir.core.errors import ShardingError, did_you_mean
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.host import offloaded
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of

RECOMPUTES = "spmd.recomputes"
"""The attribute of an op whose results are those of an earlier one."""


def note_recomputation(op: Operation, original: Operation) -> None:
    """Note on `op` that it repeats the work of `original`, whose first result has a name."""
    op.attributes[RECOMPUTES] = StringAttr(text_name(original.results[0]).removeprefix("%"))


def originals(function: FuncOp) -> dict[Operation, SSAValue]:
    """Return, of each op that is said to repeat another one, the value before it that it names, if there is one."""
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    if not any(RECOMPUTES in op.attributes for op in ops):
        return {}
    named: dict[str, SSAValue] = {}
    found: dict[Operation, SSAValue] = {}
    for op in ops:
        note = op.attributes.get(RECOMPUTES)
        if isinstance(note, StringAttr) and note.data in named:
            found[op] = named[note.data]
        for result in op.results if isinstance(op, (Collective, WaitOp)) else op.results[:1]:
            named.setdefault(text_name(result).removeprefix("%"), result)
    return found


def check_recomputations(function: FuncOp) -> None:
    """Raise ShardingError, located, unless each op that is said to repeat another one gives the same values.

    It is the same op with the same arguments and shardings, draws no random numbers, and takes the same operands,
    brought back from the host or not, or what repeats their work; or it moves the same data as one member of a
    collective.
    """
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    if not any(RECOMPUTES in op.attributes for op in ops):
        return
    values = originals(function)
    original: dict[SSAValue, SSAValue] = {}
    moved: dict[Hashable, SSAValue] = {}
    for op in ops:
        for result, move in _moves(op, original):
            original[result] = moved.setdefault(move, result)
        if op.results and (value := offloaded(op.results[0])) is not None:
            original[op.results[0]] = original.get(value, value)
        note = op.attributes.get(RECOMPUTES)
        if note is None:
            continue
        name = note.data if isinstance(note, StringAttr) else str(note)
        if op not in values:
            names = [text_name(other.results[0]).removeprefix("%") for other in ops[: ops.index(op)] if other.results]
            raise ShardingError(
                f"{RECOMPUTES} is {note}; expected the name of the first result of an op before"
                + did_you_mean(name, names),
                location_of(op),
            )
        value, other = values[op], values[op].owner
        if original.get(op.results[0], op.results[0]) == original.get(value, value):
            continue
        assert isinstance(other, Operation)  # values of ops are named
        if difference := _difference(op, other, original):
            raise ShardingError(
                f"'{op.name}' does not repeat the work of %{name}: {difference}; drop {RECOMPUTES}, or take the op as "
                "it is there",
                location_of(op),
            )
        for result, its in zip(op.results, other.results, strict=True):
            original[result] = original.get(its, its)


def _moves(op: ValueOp, original: dict[SSAValue, SSAValue]) -> Iterator[tuple[SSAValue, Hashable]]:
    """Yield each tensor that a collective gives which may repeat, at once or after a wait, with what it is.

    Args:
        original: recomputed value → the value that it is equal to.
    """
    made = op.operands[0].owner if isinstance(op, WaitOp) else op
    if not isinstance(made, Collective) or made.IS_START is not isinstance(op, WaitOp) or not made.may_repeat:
        return
    for index, (value, result) in enumerate(zip(made.operands, op.results, strict=True)):
        given = tuple(sorted(made.given(index).items()))
        yield result, (made.spec.name, given, original.get(value, value), result.type, sharding_of(result))


def _difference(op: Operation, other: Operation, original: dict[SSAValue, SSAValue]) -> str | None:
    """Return why `op` may give other values than `other`; None if it gives the same.

    Args:
        original: recomputed value → the value that it is equal to.
    """
    if op.name != other.name:
        return f"that is '{other.name}'"
    if op.properties != other.properties or op.result_types != other.result_types:
        return "its arguments, shardings or types are other ones"
    if not is_side_effect_free(op):
        return "it draws other random numbers"
    operands, expected = ([original.get(value, value) for value in one.operands] for one in (op, other))
    return None if operands == expected else "its operands are neither the same nor recomputations of these"
