"""`no_sync`: sum the gradients of several backwards on each rank, and reduce the sums in a later backward."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import attrs
from torch import Tensor

from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import P
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.runtime.rank_calls import run_rank
from spmdir.runtime.rank_programs import RankGraph, lower_rank_graph
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.resharding import LayoutChange, build_reshard_program
from spmdir.runtime.signature import Argument


@attrs.define(eq=False)
class UnreducedGradients:
    """The sums of unreduced gradients of a module on this rank.

    Attributes:
        is_adding: whether backwards add their gradients here.
        tensors: name of a parameter → sum of its gradients on this rank.
    """

    is_adding: bool = False
    tensors: dict[str, Tensor] = attrs.field(factory=dict)

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Add gradients. The first gradient of a parameter becomes its sum, and is then written to in place."""
        for name, gradient in gradients.items():
            self.tensors[name] = self.tensors[name].add_(gradient) if name in self.tensors else gradient

    def take(self) -> dict[str, Tensor]:
        """Return the sums, and reset them."""
        sums, self.tensors = self.tensors, {}
        return sums

    def __deepcopy__(self, memo: Any) -> UnreducedGradients:
        """Return a copy with the same sums. It is outside of `no_sync`, so it adds no gradients."""
        return UnreducedGradients(False, copy.deepcopy(self.tensors, memo))


@attrs.frozen(eq=False)
class Reduction:
    """Reduces the sums of unreduced gradients of a module.

    Attributes:
        parameters: name → parameter of the module.
        axes: the mesh axes along which gradients are summed: those that shard the inputs.
        pipeline: the passes of programs.
        ranks: the ranks.
    """

    parameters: Mapping[str, Argument]
    axes: tuple[str, ...]
    pipeline: Pipeline
    ranks: Ranks
    _programs: dict[tuple[str, ...], RankGraph] = attrs.field(factory=dict)

    def unreduced_sharding(self, name: str) -> Sharding:
        """Return the sharding of the unreduced gradient of a parameter: partial along the axes."""
        layout = self.parameters[name].sharding
        other_entries = [(axis, placement) for axis, placement in layout.entries if axis not in self.axes]
        return Sharding((*other_entries, *((axis, P("sum")) for axis in self.axes)), layout.mesh)

    def reduce(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums over all ranks, with the shardings of their parameters; all ranks must call this.

        Raises:
            SpmdirError: ranks have sums of different parameters, or a collective fails.
        """
        names = tuple(sums)
        if names not in self._programs:
            with self.ranks.group.check_agreement("the reduction of gradients") as status, self.pipeline.rules:
                program = self._program(names)
                status |= program.agreement
            program.connect(self.ranks)
            self._programs[names] = program
        returned = run_rank(self._programs[names].graph, list(sums.values()), self.ranks)
        return dict(zip(names, returned, strict=True))

    def _program(self, names: Iterable[str]) -> RankGraph:
        """Return the program of this rank that reduces the gradients of the parameters `names`."""
        changes = []
        for name in names:
            parameter = self.parameters[name]
            changes.append(LayoutChange(parameter.meta, self.unreduced_sharding(name), parameter.sharding))
        module = build_reshard_program("reduce", changes, self.ranks.mesh)
        return lower_rank_graph(
            module,
            partial(localize, pipeline=self.pipeline),
            pipeline=self.pipeline,
            rank=self.ranks.index,
            device=self.ranks.device,
        )
