"""The attribute `spmd.recomputes` of an op that repeats an earlier op, and its verification.

    %silu.again = aten.silu(%mm) : tensor<4x8xf32> <> attributes {spmd.recomputes = "silu"}

Recomputation lets the memory of the earlier result be freed. The attribute names the first result of the earlier op. If
the op is a collective that only moves data, one of the two may be in a bucket or asynchronous. The results are equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import is_side_effect_free

from spmdir.core.errors import ShardingError, did_you_mean
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.host_ops import offloaded
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of

RECOMPUTES = "spmd.recomputes"
"""The name of the attribute."""


def note_recomputation(op: Operation, original: Operation) -> None:
    """Mark `op` as a recomputation of `original`, whose first result has a name."""
    op.attributes[RECOMPUTES] = StringAttr(text_name(original.results[0]).removeprefix("%"))


def originals(function: FuncOp) -> dict[Operation, SSAValue]:
    """Return op with `spmd.recomputes` → the earlier value that the attribute names, if it exists."""
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    if not any(RECOMPUTES in op.attributes for op in ops):
        return {}
    values_by_name: dict[str, SSAValue] = {}
    original_values: dict[Operation, SSAValue] = {}
    for op in ops:
        note = op.attributes.get(RECOMPUTES)
        if isinstance(note, StringAttr) and note.data in values_by_name:
            original_values[op] = values_by_name[note.data]
        for result in op.results if isinstance(op, (Collective, WaitOp)) else op.results[:1]:
            values_by_name.setdefault(text_name(result).removeprefix("%"), result)
    return original_values


def check_recomputations(function: FuncOp) -> None:
    """Raise a located ShardingError unless each op with `spmd.recomputes` returns the same values as the original.

    Both must have the same name, arguments, types and shardings, and draw no random numbers. Their operands must be the
    same values, copies of them reloaded from the host, or recomputations of them. Alternatively, both are collectives
    that move the same data, where each may be a member of a bucket.

    For example, %b recomputes %a, and %d recomputes %c, in `%a = exp(%x); %c = neg(%a); %b = exp(%x); %d = neg(%b)`:
    %d and %c have equal operands, because %b is already known to be equal to %a.
    """
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    if not any(RECOMPUTES in op.attributes for op in ops):
        return
    values = originals(function)
    equal_value: dict[SSAValue, SSAValue] = {}  # value → the first value that is known to be equal
    result_of_move: dict[Hashable, SSAValue] = {}  # key of a moved tensor → its first result
    for op in ops:
        for result, move in _moved_tensors(op, equal_value):
            equal_value[result] = result_of_move.setdefault(move, result)
        offloaded_value = offloaded(op.results[0]) if op.results else None
        if offloaded_value is not None:
            equal_value[op.results[0]] = equal_value.get(offloaded_value, offloaded_value)
        note = op.attributes.get(RECOMPUTES)
        if note is None:
            continue
        name = note.data if isinstance(note, StringAttr) else str(note)
        if op not in values:
            earlier_ops = [earlier for earlier in ops[: ops.index(op)] if earlier.results]
            names = [text_name(earlier.results[0]).removeprefix("%") for earlier in earlier_ops]
            raise ShardingError(
                f"{RECOMPUTES} is {note}; expected the name of the first result of an earlier op"
                + did_you_mean(name, names),
                location_of(op),
            )
        value, repeated_op = values[op], values[op].owner
        if equal_value.get(op.results[0], op.results[0]) == equal_value.get(value, value):
            continue
        assert isinstance(repeated_op, Operation)  # values of ops are named
        difference = _difference(op, repeated_op, equal_value)
        if difference is not None:
            raise ShardingError(
                f"'{op.name}' does not recompute %{name}: {difference}; expected '{repeated_op.name}' with "
                f"equal operands, arguments and types: repeat it so, or remove {RECOMPUTES}",
                location_of(op),
            )
        for result, original_result in zip(op.results, repeated_op.results, strict=True):
            equal_value[result] = equal_value.get(original_result, original_result)


def _moved_tensors(op: ValueOp, original: dict[SSAValue, SSAValue]) -> Iterator[tuple[SSAValue, Hashable]]:
    """Yield (result, key) for each tensor that a collective moves. Results with equal keys are equal.

    An asynchronous collective yields at its wait. Ops that are not collectives, or that reduce, yield nothing.

    Args:
        original: recomputed value → the value that it is equal to.
    """
    is_wait = isinstance(op, WaitOp)
    collective = op.operands[0].owner if is_wait else op
    if not isinstance(collective, Collective) or collective.IS_START is not is_wait or not collective.may_repeat:
        return
    for index, (value, result) in enumerate(zip(collective.operands, op.results, strict=True)):
        arguments = tuple(sorted(collective.member_arguments(index).items()))
        yield result, (collective.spec.name, arguments, original.get(value, value), result.type, sharding_of(result))


def _difference(op: Operation, original_op: Operation, original: dict[SSAValue, SSAValue]) -> str | None:
    """Return why `op` may return other values than `original_op`; None if it returns the same.

    Args:
        original: recomputed value → the value that it is equal to.
    """
    if op.name != original_op.name:
        return f"the original is '{original_op.name}'"
    if op.properties != original_op.properties or op.result_types != original_op.result_types:
        return "its arguments, shardings or types differ"
    if not is_side_effect_free(op):
        return "it draws new random numbers"
    operands = [original.get(value, value) for value in op.operands]
    original_operands = [original.get(value, value) for value in original_op.operands]
    if operands != original_operands:
        return "its operands differ from the original operands, and do not recompute them"
    return None
