"""The plug-in placements that may occur in a program."""

from __future__ import annotations

from functools import lru_cache

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Placement, plugins
from spmdir.rules.strategies.placement_texts import texts_of


@attrs.frozen(cache_hash=True)
class PluginPlacements:
    """The plug-in placements that may occur in a program.

    Attributes:
        shards: the placements that shard a dimension, with `dim` 0. They may shard any dimension.
        partials: the partial placements.
        lifting: the placements that define `lift`, which may add strategies.
        declaring: the classes that declare strategies as text.
    """

    shards: tuple[ShardPlacement, ...] = ()
    partials: tuple[PartialPlacement, ...] = ()
    lifting: tuple[Placement, ...] = ()
    declaring: tuple[type[Placement], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shards or self.partials or self.lifting or self.declaring)


NO_PLUGINS = PluginPlacements()


@lru_cache(maxsize=4096)
def plugins_among(placements: tuple[Placement, ...]) -> PluginPlacements:
    """Return the plug-in placements among `placements`, grouped by how they add strategies."""
    candidates = plugins(with_dim(placement, 0) for placement in placements)
    return PluginPlacements(
        shards=tuple(
            placement for placement in candidates if isinstance(placement, ShardPlacement) and not placement.is_opaque
        ),
        partials=tuple(placement for placement in candidates if isinstance(placement, PartialPlacement)),
        lifting=tuple(placement for placement in candidates if type(placement).lift is not Placement.lift),
        declaring=tuple(kind for kind in dict.fromkeys(map(type, candidates)) if texts_of(kind)),
    )


@lru_cache(maxsize=65536)
def with_dim(placement: Placement, dim: int) -> Placement:
    """Return `placement` with its `dim` replaced, if it shards a dimension; else return it unchanged."""
    if not isinstance(placement, ShardPlacement) or placement.dim == dim:
        return placement
    return attrs.evolve(placement, dim=dim)


@lru_cache(maxsize=65536)
def can_shard(placement: Placement, size: int, count: int) -> bool:
    """Return whether `placement`, with `dim` 0, can shard `size` elements over `count` ranks."""
    try:
        placement.check((size,), count)
    except SpmdirError:
        return False
    return True
