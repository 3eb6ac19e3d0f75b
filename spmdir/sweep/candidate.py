"""Candidates of a sweep: the meshes and recipes for a number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from spmdir.core.errors import UnsupportedError, did_you_mean
from spmdir.core.mesh import Mesh
from spmdir.core.placement.pipeline_axis import PipelineAxis
from spmdir.plans.recipes import AUTO

DATA_AXES = ("dp_replicate", "dp_shard", "dp", "ep")
"""The axes that may shard the batch."""

STAGES = "pp"
"""The axis along which ranks have different stages of the model."""

RECIPE_AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ddp": ("dp",),
        "zero1": ("dp",),
        "fsdp": ("dp",),
        "hsdp": ("dp_replicate", "dp_shard"),
        "zero1*tp*sp": ("dp", "tp"),
        "fsdp*tp*sp": ("dp", "tp"),
        "hsdp*tp*sp": ("dp_replicate", "dp_shard", "tp"),
        "fsdp*cp": ("dp", "cp"),
        "fsdp*ep": ("dp", "ep"),
        "pp*fsdp": ("pp", "dp"),
        "pp*fsdp*tp*sp": ("pp", "dp", "tp"),
        AUTO: ("dp", "tp"),
    }
)
"""Recipe → the axes of its meshes, the outermost one first."""

EXPERTS = "fsdp*ep"
"""The recipe for models with experts."""

DEFAULT_RECIPES = tuple(
    recipe for recipe, axes in RECIPE_AXES.items() if recipe not in (AUTO, EXPERTS) and STAGES not in axes
)


@attrs.frozen
class MeshRecipe:
    """A recipe on a mesh.

    Attributes:
        mesh: the mesh; axes inside a node are marked.
        recipe: the recipe of the plan.
    """

    mesh: Mesh
    recipe: str

    def __str__(self) -> str:
        return f"{self.recipe} on {self.shape}"

    @property
    def data_ranks(self) -> int:
        """The number of ranks with different samples."""
        return math.prod(size for axis, size in self.mesh.axes if axis in DATA_AXES)

    @property
    def stages(self) -> int:
        """The number of stages of the model, one for each rank along the pipeline axis."""
        return self.mesh.sizes[STAGES] if STAGES in self.mesh.axis_names else 1

    @property
    def of_stage(self) -> MeshRecipe:
        """The recipe on the mesh of the ranks of one stage; this object itself without a pipeline axis."""
        if self.stages == 1:
            return self
        return MeshRecipe(PipelineAxis(STAGES).other_axes(self.mesh), self.recipe.removeprefix(f"{STAGES}*"))

    @property
    def shape(self) -> str:
        """The axes with their sizes: `dp=8,tp=8`."""
        return ",".join(f"{axis}={size}" for axis, size in self.mesh.axes)


def candidates(ranks: int, node: int, recipes: Sequence[str]) -> Iterator[MeshRecipe]:
    """Yield each recipe on each mesh that a sweep considers for a number of ranks.

    Axes of tensor, context and expert parallelism stay inside a node. The shards of `hsdp` span one node, or 8 or 64
    nodes.

    Args:
        node: the number of ranks in a node; 0 if all are in one.

    Raises:
        UnsupportedError: a recipe is not one of RECIPE_AXES.

    Example:
        >>> [candidate.shape for candidate in candidates(16, 8, ["fsdp*tp*sp"])]
        ['dp=8,tp=2', 'dp=4,tp=4', 'dp=2,tp=8']
    """
    node = min(node, ranks) or ranks
    for recipe in recipes:
        if recipe not in RECIPE_AXES:
            expected = f"expected {', '.join(RECIPE_AXES)}"
            raise UnsupportedError(
                f"cannot sweep over the recipe '{recipe}'; {expected}{did_you_mean(recipe, RECIPE_AXES)}"
            )
        for sizes in _sizes(RECIPE_AXES[recipe], ranks, node):
            yield MeshRecipe(node_mesh(sizes, node), recipe)


def _sizes(axes: tuple[str, ...], ranks: int, node: int) -> Iterator[dict[str, int]]:
    """Yield the sizes of the axes, each larger than 1.

    For 16 ranks in nodes of 8, the axes ("dp", "tp") get 8 x 2, 4 x 4 and 2 x 8. A single axis has all ranks. The
    number of stages is a power of 2.
    """
    if axes[0] == STAGES:
        for stages in (2**power for power in range(1, ranks.bit_length())):
            if ranks % stages == 0:
                for sizes in _sizes(axes[1:], ranks // stages, node):
                    yield {STAGES: stages, **sizes}
        return
    divisors = [size for size in range(2, node + 1) if node % size == 0 and ranks % size == 0]
    inner_sizes = divisors if axes[-1] in ("tp", "cp", "ep") else [1]
    for inner in inner_sizes:
        outer = ranks // inner
        if "dp_shard" not in axes:
            choices = [{"dp": outer}]
        else:
            shard_sizes = [ranks_of_shards // inner for ranks_of_shards in (node, 8 * node, 64 * node)]
            choices = [
                {"dp_replicate": outer // shards, "dp_shard": shards}
                for shards in shard_sizes
                if shards >= 2 and outer % shards == 0
            ]
        for outer_sizes in choices:
            sizes = {axis: outer_sizes.get(axis, inner) for axis in axes}
            if all(size > 1 for size in sizes.values()):
                yield sizes


def node_mesh(sizes: Mapping[str, int], node: int) -> Mesh:
    """Return the mesh with `sizes`, whose innermost axes are inside nodes of `node` ranks.

    Example:
        >>> node_mesh({"dp": 8, "tp": 8}, 8).intra_node
        ('tp',)
    """
    inside: list[str] = []
    product = 1
    for axis, size in reversed(list(sizes.items())):
        product *= size
        if node % product:
            break
        inside.insert(0, axis)
    return Mesh(sizes, intra_node=inside)


def micro_batch_counts(samples: int, data_ranks: int, stages: int = 1) -> list[int]:
    """Return the possible numbers of micro-batches: each rank has whole samples in each micro-batch.

    There are at least as many micro-batches as stages.

    Example:
        >>> micro_batch_counts(32, 8)
        [1, 2, 4]
    """
    if samples % data_ranks:
        return []
    per_rank = samples // data_ranks
    return [count for count in range(stages, per_rank + 1) if per_rank % count == 0]
