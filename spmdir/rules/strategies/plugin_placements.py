"""The plug-in placements that may occur in a program."""

from __future__ import annotations

from functools import lru_cache

import attrs

from spmdir.core.placement.base import PartialPlacement, ShardPlacement
from spmdir.core.placement.standard import Placement, plugins


@attrs.frozen(cache_hash=True)
class Extras:
    """The plug-in placements that may occur in a program.

    Attributes:
        shards: those that divide a dimension, each with `dim` 0 for whatever dimension.
        partials: those that are pending reductions.
        lifting: those that may add rows of their own.
    """

    shards: tuple[ShardPlacement, ...] = ()
    partials: tuple[PartialPlacement, ...] = ()
    lifting: tuple[Placement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shards or self.partials or self.lifting)


@lru_cache(maxsize=4096)
def extras_of(placements: tuple[Placement, ...]) -> Extras:
    """The plug-ins among `placements`."""
    found = plugins(at(p, 0) for p in placements)
    return Extras(
        tuple(p for p in found if isinstance(p, ShardPlacement)),
        tuple(p for p in found if isinstance(p, PartialPlacement)),
        tuple(p for p in found if type(p).lift is not Placement.lift),
    )


@lru_cache(maxsize=65536)
def at(placement: Placement, dim: int) -> Placement:
    """`placement` of dimension `dim`, if it divides one."""
    if not isinstance(placement, ShardPlacement) or placement.dim == dim:
        return placement
    return attrs.evolve(placement, dim=dim)
