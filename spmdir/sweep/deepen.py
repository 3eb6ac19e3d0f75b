"""Deepen the program of a training step: repeat its middle layers, as a trace of a deeper model would contain them.

Tracing takes half a second per layer, and a copy of the ops of a layer takes milliseconds. The given program has three
periods of layers, A, B and C. Copies B1, B2, … of the middle period go between B and C:

    forward:   … A  B  B1  B2  C … head          backward:   head … C  B2  B1  B  A …

An operand of a copy is found by the position of its user in its period. For example, the first op of B reads the
output of A, and the first op of C reads the output of B. So the first op of B2 reads the output of B1.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, LocationAttr, ModuleOp, NameLoc, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from spmdir.analysis.module_paths import module_paths
from spmdir.core.equal_layers import numbered_layer
from spmdir.dialects import ir
from spmdir.dialects.names import full_name, keep_name, make_names_unique
from spmdir.dialects.values import function_attrs
from spmdir.sweep.workload import PERIODS

Periods = dict[Operation | SSAValue, int]
"""Op, result or argument → its period, or `_OUTSIDE`."""

_OUTSIDE = -1
"""The period of an op, result or argument that belongs to no period."""


@attrs.frozen(eq=False)
class DeepProgram:
    """A deepened program.

    Attributes:
        module: the program.
        origins: for each of its results, the index of the equal result of the given program.
    """

    module: ModuleOp
    origins: Sequence[int]


def deepen(module: ModuleOp, first: int, period: int, copies: int) -> DeepProgram | None:
    """Return a copy of a program with further copies of its middle period, or None if its layers do not repeat.

    The program has three equal periods of layers, A B C. With two copies, the result has A B B1 B2 C. With `first` = 1
    and `period` = 1, it has the layers 0, 1 (A), 2 (B), 3 and 4 (the copies) and 5 (C).

    Args:
        first: the number of layers before the first of the three periods.
        period: the number of layers of a period.
        copies: the number of further periods.
    """
    module = module.clone()
    function = ir.main_function(module)
    layers = _find_periods(function, first, period)
    if layers is None or "spmd.outputs" in function.attributes:
        return None
    periods, prefix = layers
    ops = [[op for op in function.body.block.ops if periods[op] == index] for index in range(PERIODS)]
    if not _is_periodic(function, periods, ops):
        return None
    return DeepProgram(module, _Deepener(function, periods, ops, prefix, first, period, copies).run())


def _find_periods(function: FuncOp, first: int, period: int) -> tuple[Periods, str] | None:
    """Return (op, result or argument → its period, the prefix of the paths of layers, such as `layers.`).

    An op without a path, such as the sum of two gradients, belongs to the period of its latest operand. The result is
    None if no prefix has exactly the layers of the three periods and the layers before them.
    """
    paths = module_paths(function)
    layer_of = {key: layer for key, path in paths.items() if (layer := numbered_layer(path))}
    numbers_of: dict[str, set[int]] = {}
    for text, number in layer_of.values():
        numbers_of.setdefault(text, set()).add(number)
    all_layers = set(range(first + PERIODS * period))
    prefix = next((text for text, numbers in numbers_of.items() if numbers == all_layers), None)
    if prefix is None:
        return None

    def period_of(key: Operation | SSAValue) -> int:
        """Return the period of the layer in the path of an op or value; _OUTSIDE if it is in no repeated layer."""
        layer = layer_of.get(key)
        is_repeated = layer is not None and layer[0] == prefix and layer[1] >= first
        return (layer[1] - first) // period if is_repeated else _OUTSIDE  # type: ignore[index]

    periods: Periods = {argument: period_of(argument) for argument in function.args}
    position: dict[SSAValue, int] = {}
    for index, op in enumerate(function.body.block.ops):
        periods[op] = _OUTSIDE if isinstance(op, ReturnOp) else period_of(op)
        if not paths.get(op) and not isinstance(op, ReturnOp):
            latest = max(op.operands, key=lambda value: position.get(value, -1), default=None)
            periods[op] = periods[latest] if latest in position else _OUTSIDE  # type: ignore[index]
        for result in op.results:
            periods[result], position[result] = periods[op], index
    return periods, prefix


def _is_periodic(function: FuncOp, periods: Periods, ops: Sequence[Sequence[Operation]]) -> bool:
    """Return whether the three periods have equal ops and arguments, and use only values of their neighbours.

    Ops outside of the layers must not use values of the middle period, because copies would not feed them.

    Args:
        periods: op or value → its period: 0, 1 or 2, or `_OUTSIDE`.
        ops: the ops of each period.
    """
    op_forms = [[(op.name, len(op.operands)) for op in period_ops] for period_ops in ops]
    types = [[value.type for value in function.args if periods[value] == index] for index in range(PERIODS)]
    if any(forms != op_forms[0] for forms in op_forms) or any(period_types != types[0] for period_types in types):
        return False
    for op in function.body.block.ops:
        period = periods[op]
        operand_periods = {periods[value] for value in op.operands}
        is_outside = period == _OUTSIDE and not isinstance(op, ReturnOp)
        if is_outside and 1 in operand_periods:
            return False
        if (period == 0 and 2 in operand_periods) or (period == 2 and 0 in operand_periods):
            return False
    for equal_ops in zip(*ops, strict=True):
        for equal_operands in zip(*(op.operands for op in equal_ops), strict=True):
            first, middle, last = [periods[value] for value in equal_operands]
            # If the middle period reads the period before it, the last one must too, and likewise for the one after.
            if (middle == 0 and last != 1) or (middle == 2 and first != 1):
                return False
            if middle == _OUTSIDE and (first != _OUTSIDE or last != _OUTSIDE):
                return False
    return True


class _Deepener:
    """Inserts copies of the middle one of three equal periods of layers into a function.

    Attributes:
        ops: the ops of each of the three periods. Those of `ops[1]` are copied.
        count: the number of copies.
        first: the number of the first layer in the names of the function.
        period: the number of layers in a period.
        values: for each copy, value of the middle period → value of the copy. Entry 0 is the middle period itself.
        copied: for each copy, op of the middle period → op of the copy.
    """

    def __init__(
        self,
        function: FuncOp,
        periods: Periods,
        ops: Sequence[Sequence[Operation]],
        prefix: str,
        first: int,
        period: int,
        copies: int,
    ):
        """Prepare `copies` copies. `prefix` is the part of a layer's name before its number, such as `layers.`."""
        self.function, self.periods, self.ops, self.count = function, periods, ops, copies
        self.first, self.period = first, period
        self.values: list[dict[SSAValue, SSAValue]] = [{} for _ in range(copies + 1)]
        self.copied: list[dict[Operation, Operation]] = [{op: op for op in ops[1]}, *({} for _ in range(copies))]
        self._numbers = re.compile(rf"(?<![^\W_.]){re.escape(prefix)}([0-9]+)")
        self._locations: dict[tuple[Attribute, int], LocationAttr] = {}

    def run(self) -> list[int]:
        """Insert the copies of arguments, ops and results. Return the origin of each result of the function."""
        function, block = self.function, self.function.body.block
        arg_attrs = self._copy_arguments()
        for ops, is_ascending in list(self._middle_runs()):
            # In the forward, copy 1 comes after the middle period; in the backward, the last copy comes first.
            place = ops[-1].next_op if is_ascending else ops[0]
            assert place is not None
            numbers = range(1, self.count + 1) if is_ascending else range(self.count, 0, -1)
            for number in numbers:
                for op in ops:
                    copy = op.clone(self.values[number])
                    copy.location = self._location(op.location, number)
                    block.insert_op_before(copy, place)
                    self.copied[number][op] = copy
        for op in self.ops[2]:
            op.location = self._location(op.location, 0)
        # Entry -1 is the last copy, whose keys are all values of the middle period.
        self.values[0] = {value: value for value in self.values[-1]}
        self._connect()
        origins, res_attrs = self._copy_results()
        types = [value.type for value in block.args], [value.type for value in ir.terminator(function).operands]
        function.arg_attrs, function.res_attrs = ArrayAttr(arg_attrs), ArrayAttr(res_attrs)
        function.function_type = FunctionType.from_lists(*types)
        make_names_unique(block)
        return origins

    def _copy_arguments(self) -> list[DictionaryAttr]:
        """Insert the arguments of the copies after those that they copy, and rename them all by their new layers.

        Return the attributes of all arguments, in order.
        """
        arguments: list[SSAValue] = list(self.function.args)
        arg_attrs: list[DictionaryAttr] = []
        for argument, number in list(self._with_copies(arguments)):
            name = self._renumbered(full_name(argument) or "", number)
            if number:
                copy = self.function.body.block.insert_arg(argument.type, len(arg_attrs))
                self.values[number][argument] = copy
            keep_name(self.values[number][argument] if number else argument, name)
            attributes = function_attrs(self.function, "arg_attrs", arguments.index(argument))
            arg_attrs.append(self._renamed(attributes, number))
        return arg_attrs

    def _copy_results(self) -> tuple[list[int], list[DictionaryAttr]]:
        """Let the function return the results of the copies too.

        Returns:
            (index of the origin of each result, attributes of each result): the origin is the result that it copies.
        """
        returned = ir.terminator(self.function)
        results = list(self._with_copies(list(returned.operands)))
        origins = [list(returned.operands).index(value) for value, _ in results]
        res_attrs = [
            self._renamed(function_attrs(self.function, "res_attrs", index), number)
            for index, (_, number) in zip(origins, results, strict=True)
        ]
        returned.operands = [self.values[number][value] if number else value for value, number in results]
        return origins, res_attrs

    def _with_copies(self, values: Sequence[SSAValue]) -> Iterator[tuple[SSAValue, int]]:
        """Yield (value, number of its copy, or 0). The copies follow each run of values of the middle period."""
        for is_middle, run in itertools.groupby(values, lambda value: self.periods[value] == 1):
            run_values = list(run)
            for number in range(self.count + 1 if is_middle else 1):
                yield from ((value, number) for value in run_values)

    def _middle_runs(self) -> Iterator[tuple[list[Operation], bool]]:
        """Yield (consecutive ops of the middle period, whether layers ascend there, as in the forward).

        Layers ascend if the ops come after those of the first period, or before those of the last one.
        """
        previous = _OUTSIDE
        groups = itertools.groupby(self.function.body.block.ops, self.periods.__getitem__)
        runs = [(period, list(ops)) for period, ops in groups]
        for index, (period, ops) in enumerate(runs):
            if period == 1:
                following = next((later for later, _ in runs[index + 1 :] if later in (0, 2)), _OUTSIDE)
                yield ops, previous == 0 or (previous == _OUTSIDE and following == 2)
            elif period != _OUTSIDE:
                previous = period

    def _connect(self) -> None:
        """Replace the operands that are values of a neighbouring period, where a copy is the neighbour now.

        The value of a neighbour is found in the op of another period at the same position. For example, an op of the
        middle period B reads the first period A. The same op of the last period C reads a value of B, so the op of copy
        B2 reads that value of copy B1.
        """
        last = self.count
        changes = [
            (op, index, self.values[last][value])
            for op in self.ops[2]
            for index, value in enumerate(op.operands)
            if self.periods[value] == 1
        ]
        for first_op, op, last_op in zip(*self.ops, strict=True):
            for index, value in enumerate(op.operands):
                for number in range(last + 1):
                    user = self.copied[number][op]
                    if self.periods[value] == 0 and number > 0:
                        changes.append((user, index, self.values[number - 1][last_op.operands[index]]))
                    elif self.periods[value] == 2 and number < last:
                        changes.append((user, index, self.values[number + 1][first_op.operands[index]]))
        for op, index, value in changes:
            op.operands[index] = value

    def _renamed(self, attributes: Mapping[str, Attribute], number: int) -> DictionaryAttr:
        """Return the attributes of an argument or result, with the names in copy `number`."""
        names = {key: attributes[key] for key in ("spmd.name", "spmd.like", "spmd.buffer") if key in attributes}
        renamed = {
            key: StringAttr(self._renumbered(name.data, number))
            for key, name in names.items()
            if isinstance(name, StringAttr)
        }
        return DictionaryAttr({**attributes, **renamed})

    def _renumbered(self, text: str, number: int) -> str:
        """Return a name or path as that of copy `number`. The layers of the last period follow those of all copies.

        Example: layers 1, 2 and 3 are the periods, and the middle one gets 2 copies. Then `layers.2.weight` becomes
        `layers.3.weight` in copy 1 and `layers.4.weight` in copy 2, and `layers.3.weight` becomes `layers.5.weight`.
        """

        def renumber(match: re.Match[str]) -> str:
            """Return the matched prefix with the new number of its layer."""
            layer = int(match[1])
            period = (layer - self.first) // self.period
            shift = self.count if period == 2 else number if period == 1 else 0
            return match[0].removesuffix(match[1]) + str(layer + shift * self.period)

        return self._numbers.sub(renumber, text, count=1)

    def _location(self, location: LocationAttr, number: int) -> LocationAttr:
        """Return a location with the path in copy `number`."""
        if not isinstance(location, NameLoc):
            return location
        key = location, number
        if key not in self._locations:
            self._locations[key] = NameLoc(StringAttr(self._renumbered(location.desc.data, number)), location.location)
        return self._locations[key]
