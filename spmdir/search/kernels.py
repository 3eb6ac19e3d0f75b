"""The work of each op of a program, where elementwise ops that follow each other run as one kernel.

A value stays inside a kernel if its producer and all its users are elementwise and the users come equally late, so that
no other op is between them; views are looked through. A kernel is launched once, reads each value from outside once and
writes what others use.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.placement.literals import print_arguments
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.topology import VECTOR
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.search.work import NO_WORK, Work


@attrs.frozen
class Step:
    """One op of a program, or anything else that makes or uses values.

    Attributes:
        rule: of the op; None of an op without one.
        name: of the op; empty if it computes nothing.
        operands, results: the numbers of its values.
    """

    rule: RuleInstance | None
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def is_view(self) -> bool:
        return self.rule is not None and self.rule.viewed is not None

    @property
    def is_elementwise(self) -> bool:
        return self.rule is not None and self.rule.is_elementwise


def works(steps: Sequence[Step], metas: Sequence[TensorMeta], are_named: bool = False) -> list[Work]:
    """Return the work of each step of a program, in order.

    Args:
        metas: of its values.
        are_named: whether works say which op they are of.
    """
    found = _Kernels(steps, metas).works()
    if not are_named:
        return found
    return [work if work == NO_WORK else _named(work, step, metas) for work, step in zip(found, steps, strict=True)]


def _named(work: Work, step: Step, metas: Sequence[TensorMeta]) -> Work:
    operands = tuple([metas[value] for value in step.operands])
    arguments = print_arguments(step.rule.call.arguments if step.rule else ())
    return attrs.evolve(work, op=step.name, operands=operands, arguments=arguments)


class _Kernels:
    """The kernels of a program.

    Attributes:
        source: value → the value whose memory it shares; itself, but for views.
        kernel: step → the first step known of its kernel; see `_find`.
        inside: the values that are never written to memory.
    """

    def __init__(self, steps: Sequence[Step], metas: Sequence[TensorMeta]):
        self.steps, self.metas = steps, metas
        self.source = list(range(len(metas)))
        self.kernel = list(range(len(steps)))
        self.inside: set[int] = set()
        maker, level, late = [-1] * len(metas), [0] * len(metas), []
        users: list[list[int]] = [[] for _ in metas]
        for index, step in enumerate(steps):
            latest = max([level[value] for value in step.operands], default=0)
            latest += not (step.is_elementwise or step.is_view)
            late.append(latest)
            for value in step.results:
                maker[value], level[value] = index, latest
                if step.is_view:
                    assert step.rule is not None and step.rule.viewed is not None
                    self.source[value] = self.source[step.operands[step.rule.viewed]]
            if not step.is_view:
                for value in step.operands:
                    users[self.source[value]].append(index)
        for value, found in enumerate(users):
            if found and self.source[value] == value and steps[maker[value]].is_elementwise:
                together = all(steps[user].is_elementwise and late[user] == late[found[0]] for user in found)
                for user in found if together else ():
                    self.inside.add(value)
                    self._join(maker[value], user)

    def _find(self, step: int) -> int:
        while self.kernel[step] != step:
            self.kernel[step] = step = self.kernel[self.kernel[step]]
        return step

    def _join(self, one: int, other: int) -> None:
        first, second = sorted((self._find(one), self._find(other)))
        self.kernel[second] = first

    def works(self) -> list[Work]:
        """Return the work of each step; equal ops in equal surroundings share one value."""
        read: set[tuple[int, int]] = set()
        known: dict[object, Work] = {}
        found = []
        for index, step in enumerate(self.steps):
            if not step.name or step.is_view:
                found.append(NO_WORK)
                continue
            kernel, operands = self._find(index), []
            for value in step.operands:
                source = self.source[value]
                is_read = source not in self.inside and (kernel, source) not in read
                read.add((kernel, source))
                operands.append(self._bytes(step, value) if is_read else 0)
            results = tuple([0 if value in self.inside else self.metas[value].bytes for value in step.results])
            key = (step.rule or index, tuple(operands), results, kernel == index)
            if key not in known:
                known[key] = self._work(step, tuple(operands), results, int(kernel == index))
            found.append(known[key])
        return found

    def _bytes(self, step: Step, value: int) -> int:
        """Return the bytes that a step reads of an operand: a lookup what it picks, a broadcast view what there is."""
        size = min(self.metas[value].bytes, self.metas[self.source[value]].bytes)
        if step.rule is None or step.rule.picked.isdisjoint([step.operands.index(value)]):
            return size
        return min(size, sum(self.metas[result].bytes for result in step.results))

    def _work(self, step: Step, operands: tuple[int, ...], results: tuple[int, ...], launches: int) -> Work:
        metas = self.metas
        is_contraction = step.rule is not None and step.rule.is_contraction
        if step.rule is not None and not step.rule.is_light:
            return Work(
                step.rule.flops, metas[step.operands[0]].dtype.name, operands, results, launches, is_contraction
            )
        touched = max((metas[value].numel for value in (*step.operands, *step.results)), default=0)
        return Work(touched, VECTOR, operands, results, launches, is_contraction)
