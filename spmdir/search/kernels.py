"""The work of each op of a program, with chains of elementwise ops fused into kernels.

A value stays inside a kernel if its producer and all users are elementwise and only views separate
them. A kernel is launched once, reads each value from outside once, and writes only values that other ops use.
For example, `exp(x) + y` is one kernel: it reads x and y, writes the sum, and the exponential stays inside. So its
first op counts the launch and the read of x, and its second op the read of y and the write of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.placement.literals import print_arguments
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.topology import VECTOR
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.search.roofline import NO_WORK, Work


@attrs.frozen
class Step:
    """One op of a program, or another producer or user of values.

    Attributes:
        rule: of the op; None if the op has no rule.
        name: of the op; empty if it computes nothing.
        operands, results: the numbers of its values.
    """

    rule: RuleInstance | None
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def is_view(self) -> bool:
        """Return whether the result shares the memory of an operand."""
        return self.rule is not None and self.rule.viewed is not None

    @property
    def is_elementwise(self) -> bool:
        """Return whether the op has a rule, by which it is elementwise."""
        return self.rule is not None and self.rule.is_elementwise


def works(steps: Sequence[Step], metas: Sequence[TensorMeta], has_names: bool = False) -> list[Work]:
    """Return the work of each step of a program on one device. Views and steps without a name have none.

    Args:
        steps: in program order.
        metas: [value], its type.
        has_names: whether each `Work` contains the name, operand types and literals of its op, to find measured times.
    """
    op_works = _Kernels(steps, metas).works()
    if not has_names:
        return op_works
    return [work if work == NO_WORK else _named(work, step, metas) for work, step in zip(op_works, steps, strict=True)]


def _named(work: Work, step: Step, metas: Sequence[TensorMeta]) -> Work:
    """Return the work with the name, operand types and literals of its op, by which measured times are found."""
    operands = tuple([metas[value] for value in step.operands])
    arguments = print_arguments(step.rule.call.arguments if step.rule else ())
    return attrs.evolve(work, op=step.name, operands=operands, arguments=arguments)


class _Kernels:
    """The kernels of a program.

    Attributes:
        source: value → the value whose memory it shares; for a value that is not a view, itself.
        kernel: step → its parent in the union-find forest of kernels; see `_find`.
        inside: the values that are never written to memory.
    """

    def __init__(self, steps: Sequence[Step], metas: Sequence[TensorMeta]):
        self.steps, self.metas = steps, metas
        self.source = list(range(len(metas)))
        self.kernel = list(range(len(steps)))
        self.inside: set[int] = set()
        producer = [-1] * len(metas)
        users: list[list[int]] = [[] for _ in metas]  # value → the users of the value and of its views
        for index, step in enumerate(steps):
            for value in step.results:
                producer[value] = index
                if step.is_view:
                    assert step.rule is not None and step.rule.viewed is not None
                    self.source[value] = self.source[step.operands[step.rule.viewed]]
            if not step.is_view:
                for value in step.operands:
                    users[self.source[value]].append(index)
        levels = _levels(steps, len(metas))
        # A value stays inside a kernel if its producer and all users are elementwise, with users of one level.
        for value, value_users in enumerate(users):
            is_view = self.source[value] != value
            if not value_users or is_view or not steps[producer[value]].is_elementwise:
                continue
            user_level = levels[value_users[0]]
            if all(steps[user].is_elementwise and levels[user] == user_level for user in value_users):
                self.inside.add(value)
                for user in value_users:
                    self._join(producer[value], user)

    def _find(self, step: int) -> int:
        """Return the first step of the kernel of a step."""
        while self.kernel[step] != step:
            # Link the step to its grandparent, which shortens the path for later calls.
            self.kernel[step] = step = self.kernel[self.kernel[step]]
        return step

    def _join(self, step: int, other_step: int) -> None:
        """Merge the kernels of two steps. The earlier of their first steps becomes the first step of both."""
        root, other_root = sorted((self._find(step), self._find(other_step)))
        self.kernel[other_root] = root

    def works(self) -> list[Work]:
        """Return the work of each step. Equal works are one object.

        The first step of a kernel counts its launch. A value from outside counts for the first step that reads it.
        """
        read: set[tuple[int, int]] = set()  # (kernel, value) that an earlier step of the kernel has read
        work_by_key: dict[object, Work] = {}
        op_works = []
        for index, step in enumerate(self.steps):
            if not step.name or step.is_view:
                op_works.append(NO_WORK)
                continue
            kernel, operands = self._find(index), []
            for value in step.operands:
                source = self.source[value]
                is_read = source not in self.inside and (kernel, source) not in read
                read.add((kernel, source))
                operands.append(self._bytes(step, value) if is_read else 0)
            results = tuple([0 if value in self.inside else self.metas[value].bytes for value in step.results])
            # A step without a rule shares its work with no other step.
            key = (step.rule or index, tuple(operands), results, kernel == index)
            if key not in work_by_key:
                work_by_key[key] = self._work(step, tuple(operands), results, int(kernel == index))
            op_works.append(work_by_key[key])
        return op_works

    def _bytes(self, step: Step, value: int) -> int:
        """Return the bytes that a step reads of an operand.

        Of a broadcast view, these are the stored bytes. Of an operand from which the op picks elements, such as the
        table of a lookup, they are at most the bytes of the results: only the picked elements are read.
        """
        size = min(self.metas[value].bytes, self.metas[self.source[value]].bytes)
        if step.rule is None or step.rule.picked.isdisjoint([step.operands.index(value)]):
            return size
        return min(size, sum(self.metas[result].bytes for result in step.results))

    def _work(self, step: Step, operands: tuple[int, ...], results: tuple[int, ...], launches: int) -> Work:
        """Return the work of a step.

        A light op (`RuleInstance.is_light`), or an op without a rule, does one operation for each element of its
        largest operand or result.

        Args:
            operands, results: the bytes that the step reads of each operand and writes of each result.
            launches: 1 if the step is the first of its kernel, else 0.
        """
        metas = self.metas
        is_contraction = step.rule is not None and step.rule.is_contraction
        if step.rule is not None and not step.rule.is_light:
            return Work(
                step.rule.flops, metas[step.operands[0]].dtype.name, operands, results, launches, is_contraction
            )
        elements = max((metas[value].numel for value in (*step.operands, *step.results)), default=0)
        return Work(elements, VECTOR, operands, results, launches, is_contraction)


def _levels(steps: Sequence[Step], value_count: int) -> list[int]:
    """Return the level of each step: the most ops on a path to the step that are neither elementwise nor views.

    The step itself counts too. There may be such an op between elementwise steps of different levels, so these steps
    are never one kernel. For example, in `y = exp(x); z = y @ y; w = z + y` the levels are 0, 1 and 1, so the
    exponential and the sum are two kernels.
    """
    value_level, levels = [0] * value_count, []
    for step in steps:
        level = max([value_level[value] for value in step.operands], default=0)
        if not (step.is_elementwise or step.is_view):
            level += 1
        levels.append(level)
        for value in step.results:
            value_level[value] = level
    return levels
