"""The note on an op that repeats the work of another one, so that what that gave need not be held, and its check.

    %silu.again = aten.silu(%mm) : tensor<4x8xf32> <> attributes {spmd.recomputes = "silu"}

The name is that of the first result of the op whose work is repeated.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import is_side_effect_free

from spmdir.core.errors import ShardingError, did_you_mean
from spmdir.dialects.names import text_name
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.value_op import ValueOp

RECOMPUTES = "spmd.recomputes"
"""The attribute of an op whose results are those of an earlier one."""


def note_recomputation(op: Operation, original: Operation) -> None:
    """Note on `op` that it repeats the work of `original`, whose first result has a name."""
    op.attributes[RECOMPUTES] = StringAttr(text_name(original.results[0]).removeprefix("%"))


def check_recomputations(function: FuncOp) -> None:
    """Raise ShardingError, located, unless each op that is said to repeat another one gives the same values.

    It is the same op with the same arguments and shardings, draws no random numbers, and takes the same operands or
    what repeats their work.
    """
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    if not any(RECOMPUTES in op.attributes for op in ops):
        return
    named: dict[str, ValueOp] = {}
    original: dict[SSAValue, SSAValue] = {}
    for op in ops:
        note = op.attributes.get(RECOMPUTES)
        if note is not None:
            name = note.data if isinstance(note, StringAttr) else str(note)
            if name not in named:
                raise ShardingError(
                    f"{RECOMPUTES} is {note}; expected the name of the first result of an op before"
                    + did_you_mean(name, named),
                    location_of(op),
                )
            if difference := _difference(op, named[name], original):
                raise ShardingError(
                    f"'{op.name}' does not repeat the work of %{name}: {difference}; drop {RECOMPUTES}, or take the op "
                    "as it is there",
                    location_of(op),
                )
            for result, its in zip(op.results, named[name].results, strict=True):
                original[result] = original.get(its, its)
        if op.results:
            named.setdefault(text_name(op.results[0]).removeprefix("%"), op)


def _difference(op: ValueOp, other: ValueOp, original: dict[SSAValue, SSAValue]) -> str | None:
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
