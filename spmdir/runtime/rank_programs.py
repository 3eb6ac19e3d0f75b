"""The programs of one rank that a decided program is lowered to, one for each choice of symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Any, Generic, Protocol, TypeVar

import attrs
import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import ShardingError
from spmdir.core.symbolic.symbols import size_places
from spmdir.dialects import ir
from spmdir.dialects.size_ops import open_sizes
from spmdir.dialects.values import updated_arguments
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.in_place import write_updates
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import bind_sizes, localize, remaining_passes
from spmdir.runtime.digests import agreement
from spmdir.runtime.dynamic_dims import SPECIAL, DynamicDim
from spmdir.runtime.follow_schedule import RankMessage
from spmdir.runtime.input_comparison import InputComparison
from spmdir.runtime.per_rank_sizes import PerRankSizes
from spmdir.runtime.program_parts import extract_results
from spmdir.runtime.rank_calls import check_input, draws
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument
from spmdir.simulator.simulate import solve_shapes

SizeKey = tuple[tuple[str, int], ...]
"""Symbolic sizes by name."""


Localize = Callable[[ModuleOp], ModuleOp]
"""Function from a decided module without symbolic sizes to the program of one rank."""


class RankProgram(Protocol):
    """The program of one rank, without symbolic sizes."""

    @property
    def agreement(self) -> dict[str, Any]:
        """The properties that must be equal on all ranks, as fields of a status."""
        ...

    def connect(self, ranks: Ranks) -> None:
        """Prepare the program to run; all ranks must call this, because it creates process groups."""
        ...


Lowered = TypeVar("Lowered", bound=RankProgram)


@attrs.define(eq=False, slots=False, kw_only=True, repr=False)
class RankPrograms(Generic[Lowered]):
    """The programs of one rank.

    Attributes:
        read_module: returns the decided program, before it is lowered if its sizes are symbolic.
        pipeline: the passes of the program.
        inputs: the arguments that calls pass, with their symbolic sizes.
        examples: the sizes of the example arguments.
        is_step: whether the programs update a state with their results.
        source: the text of the imported program with locations, before decisions.
        dims: the dynamic dimensions of the example arguments.
        _lower: (decided module without symbolic sizes, function that localizes it) → the program of this rank.
        _programs: sizes → the program for these sizes.
        _latest: the sizes of the last call; None before the first call.
        _messages: sizes → the messages of the program that depend on sizes, with local inputs.
    """

    read_module: Callable[[], ModuleOp]
    pipeline: Pipeline
    inputs: Sequence[Argument]
    examples: SizeKey
    is_step: bool
    source: str
    dims: Sequence[DynamicDim]
    _ranks: Ranks = attrs.field(alias="ranks")
    _lower: Callable[[ModuleOp, Localize], Lowered] = attrs.field(alias="lower")
    _programs: dict[SizeKey, Lowered] = attrs.field(alias="programs")
    _latest: SizeKey | None = attrs.field(default=None, init=False)
    _messages: dict[SizeKey, list[RankMessage]] = attrs.field(factory=dict, init=False)
    _input_checks: InputComparison = attrs.field(
        init=False, default=attrs.Factory(lambda self: InputComparison(self._ranks), takes_self=True)
    )

    @property
    def first(self) -> Lowered:
        """The program for the example arguments."""
        return self._programs[self.examples]

    @cached_property
    def module(self) -> ModuleOp:
        """The decided program."""
        with self.pipeline.rules:
            return self.read_module()

    @cached_property
    def undecided(self) -> ModuleOp:
        """The imported program with the user's annotations; `explain` and `what_if` decide it again."""
        with self.pipeline.rules:
            return ir.read_printed(self.source)

    @cached_property
    def rank_module(self) -> ModuleOp:
        """The program of a rank in the IR, for the example arguments."""
        with self.pipeline.rules:
            if self.examples and self._ranks.local_inputs:
                return self._per_rank_sizes.reference
            return localize(bind_open_sizes(self.module, dict(self.examples), self.pipeline), self.pipeline)

    @cached_property
    def draws(self) -> bool:
        """Whether programs draw random numbers."""
        return draws(self.module)

    def find_sizes(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """Return the symbolic sizes of a call with the inputs `tensors`. In some calls, ranks compare their inputs.

        Args:
            tensors: the inputs, in the order of `inputs`; with local inputs, the shards of this rank.

        Raises:
            SpmdirError: the inputs do not fit; raised on all ranks if this call compares inputs.
            DivergenceError: this call compares inputs, and they differ.
        """
        with self._input_checks.check_call(self.inputs, tensors) as status:
            sizes = status["sizes"] = self.solve_sizes(tensors)
        return sizes

    def solve_sizes(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """Return the symbolic sizes of the program for the inputs `tensors`.

        Raises:
            SpmdirError: the inputs do not fit.
        """
        sizes: dict[str, int] = {}
        if self.examples:
            pairs = list(zip(self.inputs, tensors, strict=True))
            if self._ranks.local_inputs:
                pairs = [
                    (argument, torch.empty(self._per_rank_sizes.global_shape(argument, shard), device="meta"))
                    for argument, shard in pairs
                ]
            solve_shapes(sizes, [(argument.name, argument.sizes, tensor) for argument, tensor in pairs])
            for name, size in sizes.items():
                if size in SPECIAL:
                    raise ShardingError(self._special_size_error(name, size))
            open_sizes(self.module).check(sizes, self._size_texts)
        for argument, tensor in zip(self.inputs, tensors, strict=True):
            check_input(argument, tensor, self._ranks, sizes=sizes, is_local=self._ranks.local_inputs)
        return sizes

    @cached_property
    def _size_texts(self) -> dict[str, str]:
        """Size → text of the first dimension of an input that has it, with the name of its Dim.

        Such as {"s0": "dimension 0 of argument 'x' (Dim 'batch')"}.
        """
        text_of_dim = {(dim.argument, dim.dim): str(dim) for dim in self.dims}
        first_dims = size_places((argument.name, argument.sizes) for argument in self.inputs)
        texts = {}
        for size, (argument, dim) in first_dims.items():
            texts[size] = text_of_dim.get((argument, dim), f"dimension {dim} of argument '{argument}'")
        return texts

    def _special_size_error(self, name: str, size: int) -> str:
        """Return the error message for a size of 0 or 1."""
        subject = self._size_texts.get(name, f"size '{name}'")
        if not self._ranks.local_inputs:
            return f"{subject} is {size}; expected at least 2, for which the program was traced"
        return (
            f"{subject} is {size} in the global input; expected at least 2 with local_inputs, since torch traces sizes "
            "of 0 and 1 separately: give this rank more, or pass global inputs"
        )

    def program_for(self, sizes: Mapping[str, int], tensors: Sequence[Tensor]) -> Lowered:
        """Return the program for `sizes`, the sizes of a call with `tensors`.

        If sizes differ from the last call, ranks compare them. With local inputs, ranks compare messages that depend on
        sizes instead.

        Raises:
            SpmdirError: on all ranks, if the sizes differ, or cannot be lowered on one of them.
        """
        key = tuple(sizes.items())
        if sizes and self._ranks.local_inputs:
            return self._program_of_own_sizes(key, tensors)
        if key == (self.examples if self._latest is None else self._latest):
            return self._programs[key]
        with self._ranks.group.check_agreement("a run with new sizes") as status:
            status["sizes"] = dict(sizes)
            program = self._programs.get(key)
            if program is None:
                program = self._lower_for_sizes(sizes, partial(localize, pipeline=self.pipeline))
                status |= program.agreement
        if key not in self._programs:
            program.connect(self._ranks)
            self._programs[key] = program
        self._latest = key
        return program

    def _program_of_own_sizes(self, key: SizeKey, tensors: Sequence[Tensor]) -> Lowered:
        """Return the program for the sizes of this rank. Other ranks may have other sizes."""
        if key not in self._messages:
            local_modules: list[ModuleOp] = []  # gets the one module that lowering localizes

            def localize_own(module: ModuleOp) -> ModuleOp:
                """Return the program of a rank for these sizes, and keep it for the search of its messages."""
                local_modules.append(self._per_rank_sizes.localize(module))
                return local_modules[0]

            with self._ranks.group.report_errors():
                program = self._lower_for_sizes(dict(key), localize_own)
                dependent_messages = self._per_rank_sizes.size_dependent_messages(local_modules[0])
            program.connect(self._ranks)
            self._programs[key], self._messages[key] = program, dependent_messages
        self._per_rank_sizes.compare_messages(self._messages[key], tensors)
        return self._programs[key]

    def _lower_for_sizes(self, sizes: Mapping[str, int], localize: Localize) -> Lowered:
        """Lower the decided program with numbers in place of its symbolic sizes."""
        with self.pipeline.rules:
            return self._lower(bind_sizes(self.module, sizes, self.pipeline), localize)

    @cached_property
    def _per_rank_sizes(self) -> PerRankSizes:
        """The programs of ranks whose local inputs have different sizes. Used only with local inputs."""
        return PerRankSizes(
            module=self.module,
            pipeline=self.pipeline,
            inputs=self.inputs,
            ranks=self._ranks,
            is_step=self.is_step,
        )


@attrs.frozen(eq=False, slots=False)
class RankGraph:
    """A program of one rank, with groups named by mesh axes.

    Attributes:
        module: the program in the IR, with its collectives.
        graph: the graph of this rank.
    """

    module: ModuleOp
    graph: fx.GraphModule

    @property
    def agreement(self) -> dict[str, Any]:
        """The properties that must be equal on all ranks, as fields of a status."""
        return agreement((self.module, self.graph))

    def connect(self, ranks: Ranks) -> None:
        """Prepare the graph to run, in place; all ranks must call this, because it creates process groups.

        Results of the kind "update" are written into the arguments that they replace.
        """
        updated = updated_arguments(ir.main_function(self.module))
        write_updates(self.graph, {result: value.index for result, value in updated.items() if value is not None})
        ranks.connect(self.graph)

    def part(self, results: Set[int]) -> fx.GraphModule:
        """Return the part of the graph that computes the results with these indices."""
        key = frozenset(results)
        if key not in self._parts:
            self._parts[key] = extract_results(self.graph, results)
        return self._parts[key]

    @cached_property
    def _parts(self) -> dict[Set[int], fx.GraphModule]:
        """Indices of results → the part of the graph that computes only these results."""
        return {}


def lower_rank_graph(
    module: ModuleOp, localize: Localize, *, pipeline: Pipeline, rank: int, device: torch.device
) -> RankGraph:
    """Lower a decided module in place to a program with collectives, and return the program of a rank."""
    run_passes(module, remaining_passes(pipeline, ir.main_function(module)).before("localize"))
    return RankGraph(module, lower_to_fx(localize(module), rank, pipeline=pipeline).to(device))


def bind_open_sizes(module: ModuleOp, sizes: Mapping[str, int], pipeline: Pipeline) -> ModuleOp:
    """Return a copy of a module with the numbers `sizes`; the module itself if it has no symbolic sizes."""
    return bind_sizes(module, sizes, pipeline) if sizes else module
