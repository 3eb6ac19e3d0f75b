"""The values of a pipelined step on the coordinates of its axis, each held until its last use."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from spmdir.core.errors import DivergenceError, UnsupportedError
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_flow import StepFlow, part_of
from spmdir.dialects.pipeline_op import PipelineOp, pipeline_op
from spmdir.pipelined.actions import Action, StageMessage

T = TypeVar("T")

Key = tuple[int, int, str]
"""(coordinate, micro-batch or −1 for updates, name)."""


@attrs.define(eq=False)
class StepValues(Generic[T]):
    """The values that coordinates hold. A rank uses only its own coordinate.

    Attributes:
        flow: the flow of the step.
        values: key → the value.
        uses: key → the number of its remaining uses, by functions on the coordinate and by messages from it.
    """

    flow: StepFlow
    values: dict[Key, T] = attrs.field(factory=dict)
    uses: dict[Key, int] = attrs.field(factory=dict)

    def hold(self, action: Action, name: str, value: T) -> None:
        """Hold a result of an action, if anything uses it."""
        key, part = self._key(action, name), part_of(action)
        uses = len(self.flow.users.get((name, key[0]), ())) + (name in self.flow.step.outputs)
        # If several updates compute the value, only the first sends it: one use for each other coordinate.
        if self.flow.producers[name][0] == part:
            uses += sum(used == name and coordinate != key[0] for used, coordinate in self.flow.users)
        if uses:
            self.values[key], self.uses[key] = value, uses

    def receive(self, message: StageMessage, name: str, value: T) -> None:
        """Hold a value that a message brought."""
        key = message.target, _number(message.action), name
        self.values[key], self.uses[key] = value, len(self.flow.users[name, message.target])

    def operand(self, action: Action, name: str) -> T:
        """Return a value that an action uses.

        Raises:
            DivergenceError: the coordinate does not hold it; located.
        """
        key = self._key(action, name)
        if key not in self.values:
            raise DivergenceError(
                f"{action} uses '{name}', which {self.flow.step.axis} {key[0]} has not computed or received; "
                "expected a message or an action before it in the order",
                location_of(self.flow.functions[part_of(action)]),
            )
        return self.values[key]

    def send(self, message: StageMessage, name: str) -> T:
        """Return a value that a message takes away, which counts as a use."""
        key = self._key(message.action, name)
        value = self.values[key]
        self._use(key)
        return value

    def use_operands(self, action: Action) -> None:
        """Count the uses of the operands of an action. Values without further uses are freed."""
        for name in self.flow.operands[part_of(action)]:
            self._use(self._key(action, name))

    def _key(self, action: Action, name: str) -> Key:
        """Return the key of a value on the coordinate of an action."""
        return self.flow.step.stages[action.stage].coordinate, _number(action), name

    def _use(self, key: Key) -> None:
        """Count a use of a value, and free the value after its last use."""
        self.uses[key] -= 1
        if not self.uses[key]:
            del self.values[key], self.uses[key]


def _number(action: Action) -> int:
    return -1 if action.kind == "U" else action.micro


def scheduled_step(module: object) -> PipelineOp:
    """Return the pipelined step of a module.

    Raises:
        UnsupportedError: the module has no step, or the step has no order; located.
    """
    op = pipeline_op(module)
    if op is None or not op.step.entries:
        message = (
            "has no order of its actions; expected one: run make-schedule first"
            if op
            else "has no pipelined step; expected a `spmd.pipeline` op: run cut-stages first"
        )
        raise UnsupportedError(f"the module {message}", location_of(op or module))  # type: ignore[arg-type]
    return op
