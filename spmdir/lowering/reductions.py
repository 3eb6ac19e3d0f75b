"""Pending reductions as process groups do them, with what their placements do before and after."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch.fx import Node

from spmdir.errors import UnsupportedError
from spmdir.lowering.group import ON_BOOL
from spmdir.lowering.inline import AfterCode, BeforeCode, Kind, inline, require_kind
from spmdir.lowering.ranges import aten
from spmdir.lowering.site import Site
from spmdir.placement import REDUCTIONS
from spmdir.placement_type import PartialPlacement


@attrs.frozen
class Reduction:
    """The reduction of one op.

    Attributes:
        name: what the process group is asked for.
        befores, afters: what placements do to what a rank holds, and to the result, in this order.
    """

    site: Site
    name: str
    befores: tuple[BeforeCode, ...]
    afters: tuple[AfterCode, ...]

    def before(self, x: Node, kind: Kind) -> tuple[Node, Kind]:
        """What is reduced, of the operand `x`; and its kind."""
        for code in self.befores:
            shape, _ = kind
            x, kind = inline(self.site.emit, code, x, kind)
            require_kind(code, kind, (shape, kind[1]))
        if kind[1] == torch.bool:
            x = self.site.emit(aten.view.dtype, x, torch.uint8)
        return x, kind

    def after(self, x: Node, kind: Kind) -> Node:
        """The value, of what the process group gave, which is of `kind` but for truth values being bytes."""
        if kind[1] == torch.bool:
            x = self.site.emit(aten.view.dtype, x, torch.bool)
        wanted = kind[0], self.site.torch_dtype
        for code in self.afters:
            x, kind = inline(self.site.emit, code, x, kind)
        for code in self.afters[-1:] or self.befores[-1:]:
            require_kind(code, kind, wanted)
        return x


def reduction_of(site: Site) -> Reduction:
    """The reduction that is pending over the axes of `site`.

    Raises:
        UnsupportedError: process groups do not do it.
    """
    pending = dict.fromkeys(site.source[axis] for axis in site.named)
    placements = [placement for placement in pending if isinstance(placement, PartialPlacement)]
    first = placements[0]
    native = len(placements) == 1 and first.op in REDUCTIONS
    name = str(first.op) if native else first.reduce
    if site.dtype == "i1" and name not in ON_BOOL:
        raise UnsupportedError(f"{first} of truth values is no reduction; expected P(any) or P(all)")
    name = ON_BOOL[name] if site.dtype == "i1" else name
    if native:
        return Reduction(site, name, (), ())
    counted = [(p, site.mesh.group_size(_where(site, p))) for p in placements]
    return Reduction(
        site,
        name,
        tuple(BeforeCode(p) for p in placements),
        tuple(AfterCode(p, count) for p, count in reversed(counted)),
    )


def _where(site: Site, placement: PartialPlacement) -> Sequence[str]:
    return [axis for axis in site.named if site.source[axis] == placement]
