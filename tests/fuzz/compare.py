"""When the numbers of a partitioned program are those of one device: exactly, or as far as rounding goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ROUNDING = 16
"""How many roundings of the largest value pass; a narrow type has as many as a program has statements."""

SPREAD = 64
"""How far beyond what rounding the inputs otherwise changes on one device the difference may be."""

DOUBLE = 1e-12
NARROW = ((torch.bfloat16, "bfloat16"), (torch.float16, "half"), (torch.float16, "float16"), (torch.float32, "float"))


def difference(
    pairs: Sequence[tuple[str, Tensor, Tensor]],
    scale: float,
    source: str,
    inputs: Sequence[Tensor],
    again: Callable[[list[Tensor]], list[Tensor]],
) -> str | None:
    """Return how found values differ from expected ones beyond rounding; None if they do not.

    Integers and truth values are exact where no rounded value has made them. Others may differ by 1e-12 of the largest
    value that the program meets, or by a few units of the narrowest type in it; or, where the program amplifies
    rounding, by a multiple of what it makes of inputs that are rounded otherwise.
    """
    unit = _unit(source, inputs)
    apart = [(name, *_apart(found, right)) for name, found, right in pairs]
    for name, fault, _ in apart:
        if fault:
            return f"{name} {fault}"
    allowed = (DOUBLE if unit < 1e-15 else ROUNDING * unit) * max(scale, *(_largest(r) for *_, r in pairs), 1.0)
    far = [(index, name, by) for index, (name, _, by) in enumerate(apart) if not by <= allowed or _exact(pairs[index])]
    far = [(index, name, by) for index, name, by in far if by]
    if not far:
        return None
    spread = _spread([right for *_, right in pairs], inputs, unit, again)
    for index, name, by in far:
        if not by <= SPREAD * spread[index]:
            return f"{name} differs by {by:.3g}; {allowed:.3g} passes: {pairs[index][1]} for {pairs[index][2]}"
    return None


def _exact(pair: tuple[str, Tensor, Tensor]) -> bool:
    return not pair[2].is_floating_point() and not pair[2].is_complex()


def _unit(source: str, inputs: Sequence[Tensor]) -> float:
    types = {t.dtype for t in inputs} | {dtype for dtype, name in NARROW if name in source}
    units = [torch.finfo(t).eps for t in types if t.is_floating_point and t.itemsize > 1]
    return max(units, default=torch.finfo(torch.float64).eps)


def _apart(found: Tensor, right: Tensor) -> tuple[str | None, float]:
    if not isinstance(found, Tensor) or found.dtype != right.dtype or found.shape != right.shape:
        return f"is {_kind(found)}; expected {_kind(right)}", 0.0
    wide = torch.complex128 if right.is_complex() else torch.float64
    found, right = found.detach().to(wide), right.detach().to(wide)
    same = (found == right) | (found.isnan() & right.isnan())
    gap = torch.where(same, 0, found - right).abs()
    gap = torch.where(gap.isnan(), torch.inf, gap)
    return None, gap.max().item() if gap.numel() else 0.0


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _largest(tensor: Tensor) -> float:
    if not tensor.numel() or tensor.dtype == torch.bool:
        return 0.0
    wide = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64).abs()
    return wide.nan_to_num(0, 0, 0).max().item()


def _spread(
    right: Sequence[Tensor], inputs: Sequence[Tensor], unit: float, again: Callable[[list[Tensor]], list[Tensor]]
) -> list[float]:
    """Return how far each result moves when the inputs move by a unit in the last place."""
    generator = torch.Generator().manual_seed(0)
    spread = [0.0] * len(right)
    for _ in range(6):
        moved = []
        for value in inputs:
            if value.is_floating_point() or value.is_complex():
                noise = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 4 - 2
                wide = torch.complex128 if value.is_complex() else torch.float64
                value = (value.to(wide) * (1 + unit * noise)).to(value.dtype)
            moved.append(value)
        for index, (a, b) in enumerate(zip(again(moved), right, strict=True)):
            fault, by = _apart(a, b)
            spread[index] = max(spread[index], by if fault is None else torch.inf)
    return spread
