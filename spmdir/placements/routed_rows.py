"""The placements of a mixture of experts: rows that are sorted by expert, their order, and their counts.

A row is a (token, expert) pair. The positions of a rank's rows depend on the router, so no collective is derived from
them. Rows change their placement in `experts.sort_rows`, `experts.regroup` and `experts.unsort_rows` only.

Two ranks have 2 tokens each, with the experts 1, 0 and 1, 0. The rows in the order of experts are those of tokens
1 3 | 0 2. `Home(0)` gives rank 0 the rows 1 0, and rank 1 the rows 3 2. `Grouped(0)` gives rank 0 the rows 1 3 of
expert 0, and rank 1 the rows 0 2 of expert 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import DType
from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.core.intervals import Ranges, Run
from spmdir.core.placement.base import Edge, LocalType, Noise, PartialPlacement, Placement
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Shard

_ROUTED = (
    "the ranks of its rows depend on a router, so inputs and results cannot have this placement; expected S, R or P"
)


class RoutedPlacement(ShardPlacement):
    """A shard placement whose positions depend on a router. The declared local sizes are those of a balanced router."""

    is_routed: ClassVar[bool] = True
    splits: ClassVar[bool] = True
    offered: ClassVar[bool] = True
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return Shard(self.dim).ranges(size, count, index)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        return Shard(self.dim).runs(size, count)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        raise UnsupportedError(f"cannot distribute a tensor by {self}: {_ROUTED}")

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        raise UnsupportedError(f"cannot collect a tensor by {self}: {_ROUTED}")


@attrs.frozen
class Home(RoutedPlacement):
    """A rank has the rows of its own tokens, sorted by expert."""

    text: ClassVar[str] = "Home({dim})"
    dim: int


@attrs.frozen
class Grouped(RoutedPlacement):
    """A rank has all rows of its own experts, sorted by expert."""

    text: ClassVar[str] = "Grouped({dim})"
    varies: ClassVar[bool] = True
    nests_as_mesh: ClassVar[bool] = True  # the ranks of a dispatch are in the order of their process group
    dim: int


@attrs.frozen
class Slots(RoutedPlacement):
    """As `Grouped`, but with a fixed number of slots for the rows from each rank for each expert.

    Slots without a row are padding, whose elements are unspecified. So only ops that keep rows apart use the placement.
    """

    text: ClassVar[str] = "Slots({dim})"
    offered: ClassVar[bool] = False
    is_searched: ClassVar[bool] = False
    varies: ClassVar[bool] = True
    nests_as_mesh: ClassVar[bool] = True
    has_void_rows: ClassVar[bool] = True
    dim: int


@attrs.frozen
class Cleared(RoutedPlacement):
    """As `Slots`, but with zeros as padding. Strategies in text may sum over such rows."""

    text: ClassVar[str] = "Cleared({dim})"
    offered: ClassVar[bool] = False
    is_searched: ClassVar[bool] = False
    varies: ClassVar[bool] = True
    nests_as_mesh: ClassVar[bool] = True
    is_opaque: ClassVar[bool] = True
    dim: int


@attrs.frozen
class LocalOrder(RoutedPlacement):
    """A rank has the order of the rows of its own tokens, as indices of these rows."""

    text: ClassVar[str] = "LocalOrder({dim})"
    is_opaque: ClassVar[bool] = True
    dim: int


@attrs.frozen
class LocalCounts(PartialPlacement):
    """A rank has the counts of the rows of its own tokens, for all experts. Their sum over the ranks is the value.

    It converts to `P(sum)`, but nothing converts to it: the counts must be those of the rank's own rows.
    """

    text: ClassVar[str] = "LocalCounts"
    offered: ClassVar[bool] = True
    is_routed: ClassVar[bool] = True
    identity: ClassVar[float | None] = None

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: x, target="P(sum)")

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        return False


@attrs.frozen
class Arrivals(Placement):
    """A rank has the counts of its own experts, separately for each rank that the rows come from: [ranks, experts]."""

    text: ClassVar[str] = "Arrivals"
    offered: ClassVar[bool] = True
    is_routed: ClassVar[bool] = True
    splits: ClassVar[bool] = True

    @property
    def kind(self) -> None:
        return None

    def check(self, shape: tuple[int, ...], count: int) -> None:
        if len(shape) != 1 or shape[0] % count:
            raise ShardingError(
                f"{self} has the shape {list(shape)}; expected a vector of counts that {count} ranks divide evenly"
            )

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        return (count, shape[0] // count), dtype

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        # Row s of the table has the counts of the rows from rank s. The rows of each expert come evenly from all ranks.
        table = tensor.new_empty(count, *tensor.shape)
        for source in range(count):
            table[source] = tensor // count + (tensor % count > source)
        return [columns.clone() for columns in table.chunk(count, 1)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        result = shards[0].new_empty(shape)
        for counts_of_rank, shard in zip(result.chunk(len(shards)), shards, strict=True):
            counts_of_rank.copy_(shard.sum(0))
        return result
