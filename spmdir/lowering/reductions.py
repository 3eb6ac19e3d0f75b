"""Reductions of partial values by process groups, with `before` and `after` of their placements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs
import torch
from torch.fx import Node

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.reductions import REDUCTIONS, average_divisors, group_reduction
from spmdir.lowering.inline_code import AfterCode, BeforeCode, inline, require_kind
from spmdir.lowering.ranges import aten
from spmdir.lowering.site import Kind, Site
from spmdir.lowering.wire_types import check_reduced, view_as_sendable


@attrs.frozen
class Brackets:
    """The steps before and after a reduction over some axes, which placements declare.

    Attributes:
        site: the site of the collective that reduces.
        befores: the code that runs on the local tensor, in order.
        afters: the code that runs on the result, in order.
        divisors: the divisors of the operand and the result, for an average; (1, 1) for other reductions.
    """

    site: Site
    befores: tuple[BeforeCode, ...] = ()
    afters: tuple[AfterCode, ...] = ()
    divisors: tuple[float, float] = (1, 1)

    def prepare(self, x: Node, kind: Kind) -> tuple[Node, Kind]:
        """Return (result of the code `befores` on `x`, its kind).

        Raises:
            SpmdirError: a placement changes its shape.
        """
        for code in self.befores:
            shape, _ = kind
            x, kind = inline(self.site.emit, code, x, kind)
            require_kind(code, kind, (shape, kind[1]))
        return x, kind

    def before(self, x: Node, kind: Kind) -> tuple[Node, Kind]:
        """Return the operand of the reduction for the local tensor `x` of this kind, and the kind of the operand.

        Raises:
            SpmdirError: as for `prepare`.
        """
        x, kind = self.prepare(x, kind)
        return divide(self.site, x, self.divisors[0]), kind

    def after(self, x: Node, kind: Kind) -> Node:
        """Return the value for the result `x` of the reduction, a tensor of `kind`.

        Raises:
            SpmdirError: the value differs in shape from the result, or in element type from the operand of the op.
        """
        x = divide(self.site, x, self.divisors[1])
        expected_kind = kind[0], self.site.torch_dtype
        for code in self.afters:
            x, kind = inline(self.site.emit, code, x, kind)
        # Errors name the code that computed `x` last, if there is any.
        for code in self.afters[-1:] or self.befores[-1:]:
            require_kind(code, kind, expected_kind)
        return x


def brackets(site: Site, axes: Sequence[str]) -> Brackets:
    """Return the steps before and after a reduction of the partial values over `axes`.

    For the reductions of process groups, these are the divisions of an average. For placements with another reduction,
    they are `before` and `after` of each placement; the `after`s run in the opposite order.
    """
    axes_of_placement: dict[PartialPlacement, list[str]] = {}
    for axis in axes:
        placement = site.source[axis]
        if isinstance(placement, PartialPlacement):
            axes_of_placement.setdefault(placement, []).append(axis)
    if all(placement.op in REDUCTIONS for placement in axes_of_placement):
        return Brackets(site, divisors=divisors_of(site, axes))
    befores = [BeforeCode(placement) for placement in axes_of_placement]
    afters = [AfterCode(placement, site.mesh.group_size(reduced)) for placement, reduced in axes_of_placement.items()]
    return Brackets(site, tuple(befores), tuple(reversed(afters)))


@attrs.frozen
class Reduction:
    """The reduction of one op by a process group.

    Attributes:
        name: the name of the reduction of the process group.
        brackets: the steps before and after it.
    """

    site: Site
    name: str
    brackets: Brackets

    def before(self, x: Node, kind: Kind) -> tuple[Node, Kind]:
        """Return the operand of the process group for the local tensor `x`, and its kind.

        Raises:
            SpmdirError: a placement changes its shape, or process groups do not reduce its element type.
        """
        x, kind = self.brackets.before(x, kind)
        check_reduced(self.name, kind[1])
        return (self.site.emit(aten.view.dtype, x, torch.uint8) if kind[1] == torch.bool else x), kind

    def after(self, x: Node, kind: Kind) -> Node:
        """Return the value for the result of the process group. It has `kind`, except that booleans are bytes."""
        x = self.site.emit(aten.view.dtype, x, torch.bool) if kind[1] == torch.bool else x
        return self.brackets.after(x, kind)


def reduction_of(site: Site) -> Reduction:
    """Return the reduction of the partial values over the axes of `site`.

    Raises:
        UnsupportedError: process groups have no such reduction.
    """
    placements = (site.source[axis] for axis in site.named)
    partial = next(placement for placement in placements if isinstance(placement, PartialPlacement))
    name = group_reduction(partial.reduce, site.dtype.is_bool)
    if name is None:
        raise UnsupportedError(f"{partial} cannot reduce booleans; expected P(any) or P(all)")
    return Reduction(site, name, brackets(site, site.named))


def divisors_of(site: Site, axes: Iterable[str]) -> tuple[float, float]:
    """Return the divisors of the operand and the result of a sum over `axes`, for averages over some of them.

    `average_divisors` explains why an average divides twice. Without averages, both divisors are 1.
    """
    return average_divisors(site.mesh.group_size(axis for axis in axes if site.source[axis].op == "avg"))


def divide(site: Site, x: Node, divisor: float) -> Node:
    """Emit `x` divided by `divisor`; nothing for 1. Complex numbers are divided by parts: a part may be infinite."""
    if divisor == 1:
        return x
    if site.torch_dtype.is_complex:
        parts, unpack = view_as_sendable(site.emit, x, site.torch_dtype)
        return unpack(site.emit(aten.div.Scalar, parts, divisor))
    return site.emit(aten.div.Scalar, x, divisor)


def identities(site: Site, like: Node, shape: Sequence[int], value: float) -> Node:
    """Return a tensor of `shape` filled with the identity of a reduction, on the device of `like`.

    Args:
        value: the identity of the placement or reduction. Integers use their limits instead of infinities.
    """
    kind, size = site.torch_dtype, list(shape)
    if kind.is_complex and value == 0:
        # Both parts must be −0.0, which generated code cannot express as a complex literal.
        parts, unpack = view_as_sendable(site.emit, like, kind)
        return unpack(site.emit(aten.new_full.default, parts, [*size, 2], value))
    if kind == torch.bool:
        value = value > 0
    elif not (kind.is_floating_point or kind.is_complex):
        value = int(value) if math.isfinite(value) else _limit(kind, value)
    return site.emit(aten.new_full.default, like, size, value)


def _limit(kind: torch.dtype, value: float) -> int:
    """Return the smallest number of an integer type for −inf, or its largest for +inf."""
    limits = torch.iinfo(kind)
    return limits.min if value < 0 else limits.max
