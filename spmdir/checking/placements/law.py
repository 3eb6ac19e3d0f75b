"""What a law is, and an example that it is tried on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

import attrs
import torch

from spmdir.core.dtype import F32, DType
from spmdir.core.placement.base import Placement
from spmdir.core.placement.packed import PackedPlacement
from spmdir.simulator.distribution import random_like
from spmdir.torch_interop.dtypes import TORCH_DTYPES


@attrs.frozen
class Example:
    """What a law is tried on.

    Attributes:
        count: of ranks along the axis.
        shape, dtype: of the tensor.
        values: "random", "positive", "special" with NaN, infinities and negative zeros among them, "zero", "sparse"
            with a few large elements, or "low-rank", whose rows are multiples of one.
        scale: what finite values are multiplied by.
        noise_scale: how many times as large as the values the noise is of which partial values are made.
        about: what else there is to say, such as the step that is tried.
        subject: the part of the law that the example is of, such as an edge or a strategy; see `Law.subjects`.
    """

    count: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: DType | None = None
    values: str = "random"
    scale: float = 1.0
    noise_scale: float = 1.0
    about: str = ""
    subject: str = ""

    def __str__(self) -> str:
        parts = [self.about] if self.about else []
        if self.shape is not None:
            sizes = "x".join([*map(str, self.shape), str(self.dtype or "any")])
            times = f" times {self.scale:g}" if self.scale != 1 else ""
            noise = f" with noise {self.noise_scale:g} times as large" if self.noise_scale != 1 else ""
            parts.append(f"tensor<{sizes}>" + (f" of {self.values} values{times}{noise}" if self.dtype else ""))
        if self.count is not None:
            parts.append(f"{self.count} rank{'s' * (self.count != 1)}")
        return ", ".join(parts)

    @property
    def ranks(self) -> int:
        """Return the number of ranks, for laws that have one."""
        assert self.count is not None
        return self.count

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods that this example is about, beside those that its law is about."""
        return ()

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
            most = int(100 * self.scale)
            return torch.randint(-most if dtype.is_signed else 0, most, shape, generator=generator).to(dtype)
        parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(1 + dtype.is_complex)]
        real, *imaginary = (VALUES[self.values](part, generator) * self.scale for part in parts)
        return torch.complex(real, *imaginary).to(dtype) if imaginary else real.to(dtype)

    def noise(self, again: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the noise for `distribute`; others for other numbers."""
        noise = random_like(torch.Generator().manual_seed(self.seed + 1 + again))
        return noise if self.noise_scale == 1 else lambda tensor: (noise(tensor) * self.noise_scale).to(tensor.dtype)


def _special(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0], dtype=torch.float64)
    chosen = special[torch.randint(4, value.shape, generator=generator)]
    return torch.where(torch.rand(value.shape, generator=generator) < 0.5, chosen, value)


def _sparse(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return value.abs() * 1e3 * (torch.rand(value.shape, generator=generator) < 0.1)


def _low_rank(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return value.abs() if value.dim() < 2 else (value[:, :1] * value[:1]).abs()


VALUES: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "random": lambda value, _: value,
    "positive": lambda value, _: value.abs() + 0.125,
    "special": _special,
    "zero": lambda value, _: value * 0,
    "sparse": _sparse,
    "low-rank": _low_rank,
}
"""Name → (normal values, random numbers) → the values of the example."""


class Outcome(Enum):
    """What a law answers where it finds nothing wrong but has not been tried either."""

    UNMET = "the example cannot be placed, or the law does not say anything about it"


Fault = str | Outcome | None
"""What is wrong with an example, as what was found and what was expected; UNMET; or None if the law holds."""


def is_held(placement: Placement) -> bool:
    """Return whether values may have a placement: it is not open, and no state of local forms alone."""
    is_state = isinstance(placement, PackedPlacement) and not placement.of_values
    return placement.trait != "open" and not is_state


def where(concerns: Callable[[Placement], bool]) -> Callable[[Placement], Sequence[str]]:
    """Return the subjects of a law about the placements that it `concerns`, as a whole."""
    return lambda placement: ("",) if concerns(placement) else ()


@attrs.frozen
class Law:
    """Something that holds of every placement.

    Attributes:
        name: by which a broken law is named.
        says: the law as a clause that follows "law 'name':".
        examples: what it is tried on, for one placement.
        fault: what is wrong with an example.
        about: the methods and attributes that it is about, by which the line of a fault is found; the first that a
            class declares counts.
        all_hold: whether it holds on all of these examples, for laws that can tell so faster than one by one.
        subjects: what it must be tried on, for one placement: `""` for the law as a whole, or the edges or strategies
            that it is about; none if it does not concern the placement. A subject that no example met is not checked.
        is_slow: whether a quick check leaves it out.
        is_of_class: whether its subjects are declared by the class, so that one of its placements has to meet them.
        wanted: what to do for an example to meet it, as a clause.
    """

    name: str
    says: str
    examples: Callable[[Placement], Iterable[Example]]
    fault: Callable[[Placement, Example], Fault]
    about: tuple[str, ...] = ()
    all_hold: Callable[[Placement, Sequence[Example]], bool] | None = None
    subjects: Callable[[Placement], Iterable[str]] = lambda placement: ("",)
    is_slow: bool = False
    is_of_class: bool = False
    wanted: str = "name shapes that fit in `sample_shapes`, or add a sample of the op"


def once(placement: Placement) -> Iterable[Example]:
    """For laws about the placement alone."""
    return [Example()]
