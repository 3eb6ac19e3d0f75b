"""Find the layers of a function: ranges of ops that are equal except for their inputs.

`core/repetition.py` finds the ranges. This file compares their ops, and excludes ranges that cannot be functions.
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

LEAST_OPS = 3
"""The smallest number of ops in a layer."""

FUNCTION_LINES = 4
"""The number of lines of a function in addition to its ops."""


@attrs.frozen(eq=False)
class Segment:
    """A range of the ops of a function.

    Attributes:
        ops: the ops in program order.
        form: a key that is equal for segments that differ only in their inputs.
        layer: the prefix and the number of the layer, according to names; None if unknown.
    """

    ops: Sequence[Operation]
    form: Hashable
    layer: tuple[str, int] | None

    def inputs(self) -> list[SSAValue]:
        """Return the values from outside that its ops use, in the order of their first use."""
        inside = set(self.ops)
        return list(dict.fromkeys(operand for op in self.ops for operand in op.operands if operand.owner not in inside))

    def outputs(self) -> Iterator[tuple[int, int]]:
        """Yield (index of the op, index of the result) for each value that is used outside."""
        inside = set(self.ops)
        for place, op in enumerate(self.ops):
            for index, result in enumerate(op.results):
                if any(use.operation not in inside for use in result.uses):
                    yield place, index


def repeated_segments(function: FuncOp, in_flight: bool = False) -> list[list[Segment]]:
    """Return groups of segments that are equal except for shardings, in program order.

    A group is left out if outlining it would make the program longer.

    Args:
        in_flight: whether segments may start a transfer that a later segment waits for. They cannot be functions.
    """
    ops = list(function.body.block.ops)
    place = {op: index for index, op in enumerate(ops)}
    numbers: dict[Hashable, int] = {}
    recomputed = {value.owner for value in originals(function).values()}  # recomputations refer to these by name
    signatures = [_number(numbers, op if op in recomputed else _signature(op)) for op in ops]
    labels = [layer_of([op], ()) for op in ops]
    links = [[place[operand.owner] for operand in op.operands if isinstance(operand.owner, Operation)] for op in ops]
    groups = repeated_parts(signatures, links, labels, LEAST_OPS)
    groups_of_segments: list[list[Segment]] = []
    for ranges in groups:
        segments = [_segment(ops[part.start : part.stop], labels[part.start : part.stop], numbers) for part in ranges]
        if not in_flight:
            segments = [segment for segment in segments if _can_be_function(segment)]
        if segments and _saves_lines(segments):
            groups_of_segments.append(segments)
    return sorted(groups_of_segments, key=lambda segments: place[segments[0].ops[0]])


def _saves_lines(group: Sequence[Segment]) -> bool:
    """Return whether outlining the most common of equal segments does not make the program longer.

    For example, 3 segments of 5 ops have 15 lines; a function of 5 + 4 lines with 3 calls has 12.
    """
    count, size = Counter(segment.form for segment in group).most_common(1)[0][1], len(group[0].ops)
    return count * size >= count + size + FUNCTION_LINES


def _number(numbers: dict[Hashable, int], key: Hashable) -> int:
    """Return the number of a key. A new key gets the next number."""
    return numbers.setdefault(key, len(numbers))


def _signature(op: Operation) -> Hashable:
    """Return a key that is equal for the same op in equal layers; the op itself if it must stay, such as a return."""
    if not isinstance(op, ValueOp) or RECOMPUTES in op.attributes:
        return op
    properties = tuple((key, value) for key, value in op.properties.items() if key not in DECIDED)
    return op.name, properties, tuple(op.result_types), len(op.operands)


def _segment(
    ops: Sequence[Operation], labels: Sequence[tuple[str, int] | None], numbers: dict[Hashable, int]
) -> Segment:
    """Return the segment of `ops`.

    Args:
        labels: for each op, the layer according to its names alone.
        numbers: form → its number. Updated.
    """
    defined: dict[SSAValue, tuple[int, int]] = {}  # value → (index of its op, index of the result)
    inputs: dict[SSAValue, int] = {}  # value from outside → its number in the order of first use
    form: list[Hashable] = []
    for place, op in enumerate(ops):
        operands = tuple(
            [
                defined[operand] if operand in defined else inputs.setdefault(operand, len(inputs))
                for operand in op.operands
            ]
        )
        form.append((op.name, _sorted(op.properties), _sorted(op.attributes), tuple(op.result_types), operands))
        defined.update({result: (place, index) for index, result in enumerate(op.results)})
    form += [(value.type, sharding_of(value)) for value in inputs]
    layer = most_frequent(Counter(filter(None, labels))) or layer_of(ops, inputs)
    return Segment(ops, _number(numbers, tuple(form)), layer)


def _can_be_function(segment: Segment) -> bool:
    """Return whether all inputs and outputs of a segment can be arguments and results of a function."""
    types = [value.type for value in segment.inputs()]
    types += [segment.ops[place].results[index].type for place, index in segment.outputs()]
    return all(meta_of(type_) is not None and not isinstance(type_, (PendingType, HostType)) for type_ in types)


def _sorted(entries: dict[str, Attribute]) -> tuple[tuple[str, Attribute], ...]:
    """Return the attributes as (name, value) pairs, sorted by name."""
    return tuple(sorted(entries.items(), key=lambda entry: entry[0]))
