"""Candidates of a sweep: the meshes and recipes for a number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from spmdir.core.errors import UnsupportedError, did_you_mean
from spmdir.core.mesh import Mesh
from spmdir.plans.recipes import AUTO

DATA_AXES = ("dp_replicate", "dp_shard", "dp", "ep")
"""The axes that may shard the batch."""

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
        AUTO: ("dp", "tp"),
    }
)
"""Recipe → the axes of its meshes, the outermost one first."""

DEFAULT_RECIPES = tuple(recipe for recipe in RECIPE_AXES if recipe not in (AUTO, "fsdp*ep"))


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

    For 16 ranks in nodes of 8, the axes ("dp", "tp") get 8 x 2, 4 x 4 and 2 x 8. A single axis has all ranks.
    """
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


def micro_batch_counts(samples: int, data_ranks: int) -> list[int]:
    """Return the possible numbers of micro-batches: each rank has whole samples in each micro-batch.

    Example:
        >>> micro_batch_counts(32, 8)
        [1, 2, 4]
    """
    if samples % data_ranks:
        return []
    per_rank = samples // data_ranks
    return [count for count in range(1, per_rank + 1) if per_rank % count == 0]
