"""The flow of values through a pipelined step, from the names in the signatures of its functions.

An argument of a function is found by its name:

1. an input of the step: the part of the micro-batch;
2. state or a sum: the present value that the stage keeps;
3. otherwise the result of this name of another function, for the same micro-batch.

With these functions, `relu` stays on its stage, and `add` is sent from stage 0 to stage 1:

    @stage0.forward(%x, %parameters.0.weight) -> (add, relu)
    @stage1.forward(%add, …)                  -> (…)
    @stage0.backward(%x, %relu, %mul)         -> (gradients.0.weight)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import UnsupportedError, did_you_mean
from spmdir.dialects.pipeline_op import PipelineOp
from spmdir.dialects.values import signature_name
from spmdir.pipelined.actions import Action, StageMap, StageMessage
from spmdir.pipelined.global_order import UpdateRounds
from spmdir.pipelined.step import PipelinedStep


def part_of(action: Action) -> Action:
    """Return the action that represents `action` for all micro-batches. A round of an update represents itself."""
    return action if action.kind == "U" else Action(action.stage, action.kind, 0)


@attrs.frozen(eq=False, slots=False)
class StepFlow:
    """The functions of a step, and the values that they exchange.

    Attributes:
        step: the step.
        functions: action on micro-batch 0, or round of an update → its function.
    """

    step: PipelinedStep
    functions: Mapping[Action, FuncOp]

    @classmethod
    def of(cls, op: PipelineOp) -> StepFlow:
        """Return the flow of a step.

        Raises:
            UnsupportedError: a function does not exist, or has no body; located.
        """
        module: Any = op.parent_op()
        named = {function.sym_name.data: function for function in module.body.block.ops if isinstance(function, FuncOp)}
        functions: dict[Action, FuncOp] = {}
        for action, name in op.step.functions():
            if name not in named or not named[name].body.blocks:
                raise UnsupportedError(
                    f"stage {action.stage} runs @{name}; expected a function of the module{did_you_mean(name, named)}",
                    op.stage_location(action.stage),
                )
            functions[action] = named[name]
        return cls(op.step, functions)

    def arguments(self, action: Action) -> list[str]:
        """Return the names of the arguments of an action's function."""
        function = self.functions[part_of(action)]
        return [signature_name(function, "arg_attrs", index) for index in range(len(function.args))]

    def results(self, action: Action) -> list[str]:
        """Return the names of the results of an action's function."""
        function = self.functions[part_of(action)]
        return [
            signature_name(function, "res_attrs", index) for index in range(len(function.function_type.outputs.data))
        ]

    @cached_property
    def producers(self) -> dict[str, list[Action]]:
        """Return name of a value → the functions that compute it."""
        producers: dict[str, list[Action]] = {}
        for part in self.functions:
            for name in self.results(part):
                if not self.step.is_state(name):
                    producers.setdefault(name, []).append(part)
        return producers

    @cached_property
    def operands(self) -> dict[Action, dict[str, Action]]:
        """Return function → name of an argument → the function that computes it.

        If several stages compute a value in their updates, a stage uses its own, or else that of the first stage.
        """
        operands: dict[Action, dict[str, Action]] = {}
        for part in self.functions:
            operands[part] = {}
            for name in self.arguments(part):
                if name in self.step.batch or self.step.is_state(name):
                    continue
                producers = self.producers.get(name, [])
                producers_in_stage = [producer for producer in producers if producer.stage == part.stage]
                if producers:
                    operands[part][name] = (producers_in_stage or producers)[0]
        return operands

    @cached_property
    def stage_map(self) -> StageMap:
        """Return the placement of stages, with the links between them."""
        links = set()
        for part, operands in self.operands.items():
            for producer in operands.values():
                if part.kind != "U" and producer.stage != part.stage:
                    links.add(((producer.stage, producer.kind), (part.stage, part.kind)))
        return StageMap(self.step.coordinates, frozenset(links), self.step.is_split)

    @cached_property
    def updates(self) -> UpdateRounds:
        """Return the rounds of the updates, and their dependences on other stages."""
        rounds = [sum(kind == "U" for kind, _ in stage.functions) for stage in self.step.stages]
        operands = {
            part: tuple(sorted({producer for producer in of_names.values() if producer.stage != part.stage}))
            for part, of_names in self.operands.items()
            if part.kind == "U"
        }
        return UpdateRounds(tuple(rounds), operands)

    @cached_property
    def _sent(self) -> dict[tuple[Action, int], list[str]]:
        """Return (function, coordinate) → the names of its results that are sent to the coordinate."""
        sent: dict[tuple[Action, int], set[str]] = {}
        for part, operands in self.operands.items():
            target = self.step.stages[part.stage].coordinate
            for name, producer in operands.items():
                if self.step.stages[producer.stage].coordinate != target:
                    sent.setdefault((producer, target), set()).add(name)
        return {key: [name for name in self.results(key[0]) if name in names] for key, names in sent.items()}

    def carried(self, message: StageMessage) -> list[str]:
        """Return the names of the values that a message carries, in the order of the results of its function."""
        return self._sent.get((part_of(message.action), message.target), [])

    @cached_property
    def users(self) -> dict[tuple[str, int], list[Action]]:
        """Return (name of a value, coordinate) → the functions on the coordinate that use it."""
        users: dict[tuple[str, int], list[Action]] = {}
        for part, operands in self.operands.items():
            for name in operands:
                users.setdefault((name, self.step.stages[part.stage].coordinate), []).append(part)
        return users

    def state_names(self, stage: int) -> list[str]:
        """Return the names of the tensors that a stage keeps, in the order of their first use."""
        names: dict[str, None] = {}
        for part in self.functions:
            if part.stage == stage:
                names.update(dict.fromkeys(filter(self.step.is_state, [*self.arguments(part), *self.results(part)])))
        return list(names)
