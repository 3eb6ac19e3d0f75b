"""A decided program, and what one rank runs of it: a program for each choice of its symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property

import attrs
import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

from spmdir.dialects.sizes import open_sizes
from spmdir.lowering.emit import lower_to_fx
from spmdir.passes.finish import bound, localized, rest
from spmdir.passes.pipeline import Pipeline, run_passes
from spmdir.runtime.digests import program_digest
from spmdir.runtime.partial_runs import part_of
from spmdir.runtime.rank_calls import draws
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument
from spmdir.simulator.simulate import solve_shapes

Known = tuple[tuple[str, int], ...]
"""Symbolic sizes by name."""


@attrs.define(eq=False, slots=False, kw_only=True)
class RankPrograms:
    """The programs of one rank.

    Attributes:
        module: the decided program, before it is lowered if its sizes are symbolic.
        pipeline: what is run on it.
        examples: the sizes of the example arguments.
    """

    module: ModuleOp
    pipeline: Pipeline
    examples: Known
    _ranks: Ranks = attrs.field(alias="ranks")
    _graphs: dict[Known, fx.GraphModule] = attrs.field(alias="graphs")
    _parts: dict[tuple[fx.GraphModule, Set[int]], fx.GraphModule] = attrs.field(factory=dict, init=False)
    _last: Known | None = attrs.field(default=None, init=False)

    @property
    def graph(self) -> fx.GraphModule:
        """The program for the example arguments."""
        return self._graphs[self.examples]

    @cached_property
    def rank_module(self) -> ModuleOp:
        """The program of a rank in the IR, for the example arguments."""
        with self.pipeline.rules:
            sizes = dict(self.examples)
            return localized(bound(self.module, sizes, self.pipeline) if sizes else self.module, self.pipeline)

    @cached_property
    def draws(self) -> bool:
        """Whether programs draw random numbers."""
        return draws(self.module)

    def sizes(self, arguments: Sequence[Argument], given: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the symbolic sizes in a call with `given` for the `arguments` that are inputs.

        Raises:
            SpmdirError: the inputs have no such sizes.
        """
        known: dict[str, int] = {}
        declared = open_sizes(self.module)
        if declared.symbols:
            solve_shapes(known, [(a.name, a.sizes, given[a.name]) for a in arguments])
            declared.check(known)
        return known

    def of(self, sizes: Mapping[str, int]) -> fx.GraphModule:
        """Return the program for `sizes`; the ranks agree on sizes that are not those of the last call.

        Raises:
            SpmdirError: on all ranks, if the sizes differ, or cannot be lowered on one of them.
        """
        key = tuple(sizes.items())
        if key == (self.examples if self._last is None else self._last):
            return self._graphs[key]
        with self._ranks.group.checked("a run with new sizes") as status:
            status["sizes"] = dict(sizes)
            graph = self._graphs.get(key)
            if graph is None:
                with self.pipeline.rules:
                    module = bound(self.module, sizes, self.pipeline)
                    program, graph = lowered(module, self.pipeline, self._ranks.index, self._ranks.device)
                status["program"] = program_digest(program, graph)
        if key not in self._graphs:
            self._ranks.connect(graph)
            self._graphs[key] = graph
        self._last = key
        return graph

    def part(self, graph: fx.GraphModule, results: Set[int]) -> fx.GraphModule:
        """Return what of a program makes these results."""
        key = graph, frozenset(results)
        if key not in self._parts:
            self._parts[key] = part_of(graph, results)
        return self._parts[key]


def lowered(module: ModuleOp, pipeline: Pipeline, rank: int, device: torch.device) -> tuple[ModuleOp, fx.GraphModule]:
    """Return a decided module with its collectives, and a rank's program, whose groups are named by mesh axes."""
    run_passes(module, rest(pipeline, module).before("localize"))
    return module, lower_to_fx(module, rank, pipeline=pipeline).to(device)
