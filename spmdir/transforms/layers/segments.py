"""Ranges of the ops of a function that are equal but for what they take: its layers.

`core/repetition.py` finds the ranges; this file compares what they compute, and leaves out those that cannot be called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from spmdir.core.repetition import repeated_parts
from spmdir.dialects.attributes import HostType, PendingType, meta_of
from spmdir.dialects.recomputation import RECOMPUTES, originals
from spmdir.dialects.value_op import DECIDED, ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.transforms.layers.layer_names import layer_of, most_frequent

SMALLEST = 3
"""The fewest ops of a layer."""

AROUND = 4
"""The lines of a function beside its ops."""


@attrs.frozen(eq=False)
class Segment:
    """A range of the ops of a function.

    Attributes:
        ops: in program order.
        form: equal for segments that differ only in the values that they take.
        layer: prefix and number of the layer that it is of, as names say; None if they do not.
    """

    ops: Sequence[Operation]
    form: Hashable
    layer: tuple[str, int] | None

    def inputs(self) -> list[SSAValue]:
        """Return the values that it takes from outside, in the order of their first use."""
        inside = set(self.ops)
        return list(dict.fromkeys(one for op in self.ops for one in op.operands if one.owner not in inside))

    def outputs(self) -> Iterator[tuple[int, int]]:
        """Yield (op, result) of the values that are used outside."""
        inside = set(self.ops)
        for place, op in enumerate(self.ops):
            for index, result in enumerate(op.results):
                if any(use.operation not in inside for use in result.uses):
                    yield place, index


def repeated_segments(function: FuncOp, in_flight: bool = False) -> list[list[Segment]]:
    """Return groups of segments that are equal but for shardings, in program order, if functions of them pay.

    Args:
        in_flight: whether what is in flight may go across, as it does between functions never.
    """
    ops = list(function.body.block.ops)
    place = {op: index for index, op in enumerate(ops)}
    numbers: dict[Hashable, int] = {}
    repeated = {value.owner for value in originals(function).values()}  # named from where they run again
    looks = [_number(numbers, op if op in repeated else _look(op)) for op in ops]
    labels = [layer_of([op], ()) for op in ops]
    links = [[place[operand.owner] for operand in op.operands if isinstance(operand.owner, Operation)] for op in ops]
    groups = repeated_parts(looks, links, labels, SMALLEST)
    made = [
        [_segment(ops[part.start : part.stop], labels[part.start : part.stop], numbers) for part in parts]
        for parts in groups
    ]
    found = [[one for one in segments if in_flight or _may_be_called(one)] for segments in made]
    kept = [group for group in found if group and _pays(group)]
    return sorted(kept, key=lambda group: place[group[0].ops[0]])


def _pays(group: Sequence[Segment]) -> bool:
    """Return whether a function of those that are equal, and calls of it, are no more lines than they are."""
    count, size = Counter(one.form for one in group).most_common(1)[0][1], len(group[0].ops)
    return count * size >= count + size + AROUND


def _number(numbers: dict[Hashable, int], look: Hashable) -> int:
    return numbers.setdefault(look, len(numbers))


def _look(op: Operation) -> Hashable:
    """Return what equal layers have in common in an op; of what stays where it is, as a return, the op itself."""
    if not isinstance(op, ValueOp) or RECOMPUTES in op.attributes:
        return op
    said = tuple((key, value) for key, value in op.properties.items() if key not in DECIDED)
    return op.name, said, tuple(op.result_types), len(op.operands)


def _segment(
    ops: Sequence[Operation], labels: Sequence[tuple[str, int] | None], numbers: dict[Hashable, int]
) -> Segment:
    """Return the segment of some ops.

    Args:
        labels: the layer that each op is of, as it says alone.
        numbers: of what has been seen.
    """
    made: dict[SSAValue, tuple[int, int]] = {}
    taken: dict[SSAValue, int] = {}
    form: list[Hashable] = []
    for place, op in enumerate(ops):
        operands = tuple([made[one] if one in made else taken.setdefault(one, len(taken)) for one in op.operands])
        form.append((op.name, _sorted(op.properties), _sorted(op.attributes), tuple(op.result_types), operands))
        made.update({result: (place, index) for index, result in enumerate(op.results)})
    form += [(value.type, sharding_of(value)) for value in taken]
    layer = most_frequent(Counter(filter(None, labels))) or layer_of(ops, taken)
    return Segment(ops, _number(numbers, tuple(form)), layer)


def _may_be_called(segment: Segment) -> bool:
    """Return whether it can be a function."""
    crossing = [value.type for value in segment.inputs()]
    crossing += [segment.ops[place].results[index].type for place, index in segment.outputs()]
    return all(map(_may_cross, crossing))


def _sorted(entries: dict[str, Attribute]) -> tuple[tuple[str, Attribute], ...]:
    return tuple(sorted(entries.items(), key=lambda entry: entry[0]))


def _may_cross(type_: Attribute) -> bool:
    return meta_of(type_) is not None and not isinstance(type_, (PendingType, HostType))
