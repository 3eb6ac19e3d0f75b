"""What a law is, and an example that it is tried on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import attrs
import torch

from spmdir.core.dtype import F32, DType
from spmdir.core.placement.base import Placement
from spmdir.simulator.distribution import random_like
from spmdir.torch_interop.dtypes import TORCH_DTYPES


@attrs.frozen
class Example:
    """What a law is tried on.

    Attributes:
        count: of ranks along the axis.
        shape, dtype: of the tensor.
        values: "random", "positive", or "special" with NaN, infinities and negative zeros among them.
        about: what else there is to say, such as the step that is tried.
    """

    count: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: DType | None = None
    values: str = "random"
    about: str = ""

    def __str__(self) -> str:
        parts = [self.about] if self.about else []
        if self.shape is not None:
            sizes = "x".join([*map(str, self.shape), str(self.dtype or "any")])
            parts.append(f"tensor<{sizes}>" + (f" of {self.values} values" if self.dtype else ""))
        if self.count is not None:
            parts.append(f"{self.count} rank{'s' * (self.count != 1)}")
        return ", ".join(parts)

    @property
    def ranks(self) -> int:
        """Return the number of ranks, for laws that have one."""
        assert self.count is not None
        return self.count

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())

    def tensor(self) -> torch.Tensor:
        """Return the tensor of the example, always the same."""
        generator = torch.Generator().manual_seed(self.seed)
        shape, dtype = self.shape or (), TORCH_DTYPES[self.dtype or F32]
        if dtype == torch.bool:
            return torch.rand(shape, generator=generator) > 0.5
        if not (dtype.is_floating_point or dtype.is_complex):
            return torch.randint(0, 100, shape, generator=generator).to(dtype)
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.values == "positive":
            value = value.abs() + 0.125
        if self.values == "special":
            special = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0], dtype=torch.float64)
            chosen = special[torch.randint(4, shape, generator=generator)]
            value = torch.where(torch.rand(shape, generator=generator) < 0.5, chosen, value)
        return value.to(dtype)

    def noise(self, again: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the noise for `distribute`; others for other numbers."""
        return random_like(torch.Generator().manual_seed(self.seed + 1 + again))


@attrs.frozen
class Law:
    """Something that holds of every placement.

    Attributes:
        name: by which a broken law is named.
        says: the law as a clause that follows "law 'name':".
        examples: what it is tried on, for one placement; none if it does not concern it.
        fault: what is wrong with an example, as what was found and what was expected; None if nothing is.
    """

    name: str
    says: str
    examples: Callable[[Placement], Iterable[Example]]
    fault: Callable[[Placement, Example], str | None]


def once(placement: Placement) -> Iterable[Example]:
    """For laws about the placement alone."""
    return [Example()]
