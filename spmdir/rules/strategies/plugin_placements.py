"""The plug-in placements that may occur in a program."""

from __future__ import annotations

from functools import lru_cache

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import PartialPlacement, ShardPlacement
from spmdir.core.placement.standard import Placement, plugins
from spmdir.rules.strategies.placement_texts import texts_of


@attrs.frozen(cache_hash=True)
class PluginPlacements:
    """The plug-in placements that may occur in a program.

    Attributes:
        shards: those that shard a dimension, each with `dim` 0 for whatever dimension.
        partials: those that are partial.
        lifting: those that may add strategies of their own.
        declaring: the classes that come with strategies as text.
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
    """Return the plug-ins among `placements`."""
    found = plugins(at(p, 0) for p in placements)
    return PluginPlacements(
        tuple(p for p in found if isinstance(p, ShardPlacement)),
        tuple(p for p in found if isinstance(p, PartialPlacement)),
        tuple(p for p in found if type(p).lift is not Placement.lift),
        tuple(kind for kind in dict.fromkeys(map(type, found)) if texts_of(kind)),
    )


@lru_cache(maxsize=65536)
def at(placement: Placement, dim: int) -> Placement:
    """Return `placement` of dimension `dim`, if it shards one."""
    if not isinstance(placement, ShardPlacement) or placement.dim == dim:
        return placement
    return attrs.evolve(placement, dim=dim)


@lru_cache(maxsize=65536)
def suits(placement: Placement, size: int, count: int) -> bool:
    """Return whether `count` ranks can shard a dimension of `size` elements so; `placement.dim` is 0."""
    try:
        placement.check((size,), count)
    except SpmdirError:
        return False
    return True
