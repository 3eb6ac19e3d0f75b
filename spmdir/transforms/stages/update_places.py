"""Place the ops of an update on stages, and divide them into rounds.

An op of the update runs where its operands are. If no stage has all of them, as for the norm of all gradients, each
stage that needs the result receives the missing operands and runs the op. So all stages add in the same order as one
device. Round 0 of a stage uses only its own values; round r + 1 uses values that other stages computed in round r.

With a parameter on each of two stages, and a norm that clips both gradients:

    op                           places    round
    square.0 = sum of squares    {0}       0      sent to stage 1
    square.1                     {1}       0      sent to stage 0
    norm = square.0 + square.1   {0, 1}    1
    new.0 = update by norm       {0}       1
    new.1                        {1}       1
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import attrs
from xdsl.ir import Operation, OpResult, SSAValue

from spmdir.core.errors import UnsupportedError
from spmdir.dialects.locations import location_of
from spmdir.transforms.stages.step_parts import StepParts

Computed = tuple[SSAValue, int]
"""(value, stage)."""


@attrs.define(eq=False)
class UpdatePlaces:
    """The places of an update.

    Attributes:
        parts: the step.
        count: the number of stages.
        sum_stage: new value of a sum → its stage.
        homes: argument of a parameter → its stages.
        source: (value, stage) → the stage from which the stage receives it; itself if it is there.
        results: (name of state, stage): the new values that a stage computes or receives.
        outputs: output of the step → the stage that returns it.
    """

    parts: StepParts
    count: int
    sum_stage: Mapping[SSAValue, int]
    homes: Mapping[SSAValue, Set[int]]
    source: dict[Computed, int] = attrs.field(factory=dict)
    results: set[tuple[str, int]] = attrs.field(factory=set)
    outputs: dict[SSAValue, int] = attrs.field(factory=dict)
    _places: dict[SSAValue, frozenset[int]] = attrs.field(factory=dict)
    _rounds: dict[Computed, int] = attrs.field(factory=dict)

    def place_all(self) -> None:
        """Place all results of the update on stages: fill `source`, `results` and `outputs`.

        - The new value of a parameter is on each stage that uses the parameter.
        - The total of a tied parameter is on the stage of the sum that it replaces.
        - An output is on one of the stages where it takes the fewest messages.
        - Other state, such as the number of updates, is on the stages that read it, or else on one stage.
        """
        names: dict[SSAValue, str] = {value: name for name, value in self.parts.state.items()}
        unplaced = dict(self.parts.updates)
        for name, value in self.parts.updates.items():
            if (argument := self.parts.state[name]) in self.homes:
                del unplaced[name]
                for stage in self.homes[argument]:
                    self._add_result(name, value, stage, names)
            elif name in self.parts.sums:  # the total of a tied parameter replaces the sum of one stage
                del unplaced[name]
                self._add_result(name, value, self.sum_stage[self.parts.sums[name]], names)
        for value in self.parts.outputs:
            if value not in self.sum_stage:
                self.outputs[value] = min(self._find_places(value))
                self._need(value, self.outputs[value], names)
        for name, value in unplaced.items():
            if not any(placed_name == name for placed_name, _ in self.results):  # `_need` adds state that is read
                self._add_result(name, value, min(self._find_places(value)), names)

    def round_of(self, value: SSAValue, stage: int) -> int:
        """Return the first round of a stage in which it has a value.

        Inputs are there in round 0. A stage computes a value in the round of the last operand, and receives a value in
        the round after that of its source.
        """
        key = value, stage
        if key not in self._rounds:
            source = self.source[key]
            if source != stage:
                self._rounds[key] = self.round_of(value, source) + 1
            elif self._is_computed(value):
                operands = value.owner.operands  # type: ignore[union-attr]
                self._rounds[key] = max((self.round_of(operand, stage) for operand in operands), default=0)
            else:
                self._rounds[key] = 0
        return self._rounds[key]

    def _is_computed(self, value: SSAValue) -> bool:
        """Return whether an op of the update computes `value`."""
        return isinstance(value, OpResult) and value not in self.sum_stage

    def _find_places(self, value: SSAValue) -> frozenset[int]:
        """Return the stages at which a value can be computed with the fewest messages.

        These are the stages where all operands of its op are, or if there are none, the stages of any operand. A sum is
        on its stage, a parameter on the stages that use it, and any other input on all stages.
        """
        if value not in self._places:
            every = frozenset(range(self.count))
            if value in self.sum_stage:
                places = frozenset({self.sum_stage[value]})
            elif not self._is_computed(value):
                places = frozenset(self.homes.get(value, every))
            else:
                of_operands = [self._find_places(operand) for operand in value.owner.operands]  # type: ignore[union-attr]
                places = every.intersection(*of_operands) or frozenset().union(*of_operands)
            self._places[value] = places
        return self._places[value]

    def _add_result(self, name: str, value: SSAValue, stage: int, names: Mapping[SSAValue, str]) -> None:
        """Record that a stage has the new value `value` of the state `name`, and all that this requires."""
        if (name, stage) not in self.results:
            self.results.add((name, stage))
            self._need(value, stage, names)

    def _need(self, value: SSAValue, stage: int, names: Mapping[SSAValue, str]) -> None:
        """Record in `source` that a stage needs a value, and all that this requires.

        If the value is not placed on the stage, another stage needs it too, and sends it. If the stage computes the
        value, it needs the operands.
        """
        stack = [(value, stage)]
        while stack:
            key = value, stage = stack.pop()
            if key in self.source:
                continue
            places = self._find_places(value)
            self.source[key] = source = stage if stage in places else min(places)
            if source != stage:
                if not isinstance(value, OpResult):
                    raise UnsupportedError(
                        f"the update of stage {stage} reads '{names.get(value)}', which stage {source} "
                        "keeps; expected an update that reads the parameters of its own stage: use an "
                        "optimizer that updates each parameter separately, without clipping by a global "
                        "norm",
                        location_of(self.parts.function),
                    )
                stack.append((value, source))
            elif self._is_computed(value):
                stack += [(operand, stage) for operand in value.owner.operands]  # type: ignore[union-attr]
            elif (name := names.get(value)) in self.parts.updates and value not in self.homes:
                # A stage that reads state, such as the number of updates, also computes its new value.
                self.results.add((name, stage))  # type: ignore[arg-type]  # it is in updates
                stack.append((self.parts.updates[name], stage))  # type: ignore[index]


def placed_ops(places: UpdatePlaces, stage: int, number: int) -> list[Operation]:
    """Return the ops of one round of a stage, in the order of the program."""
    ops = set()
    for (value, user_stage), source in places.source.items():
        is_here = user_stage == stage == source and isinstance(value, OpResult) and value not in places.sum_stage
        if is_here and places.round_of(value, stage) == number:
            ops.add(value.owner)
    return [op for op in places.parts.function.body.block.ops if op in ops]
