"""Laws of placements, and the examples on which they are checked."""

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
    """An example on which a law is checked.

    Attributes:
        count: the number of ranks along the axis.
        shape, dtype: the global shape and element type of the tensor.
        values: "random", "positive", "special" (also NaN, infinities and negative zeros), "zero", "sparse" (few large
            elements), or "low-rank" (all rows are multiples of one row).
        scale: the factor of finite values.
        noise_scale: the factor of the noise of which partial values are built.
        about: additional text, such as the step that is tried.
        subject: the part of the law that the example belongs to, such as an edge or a strategy; see `Law.subjects`.
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
        """The number of ranks, if the example has one."""
        assert self.count is not None
        return self.count

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that the example is about, in addition to those of its law."""
        return ()

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())

    def tensor(self) -> torch.Tensor:
        """Return the tensor of the example. It is the same for each call."""
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

    def noise(self, draw: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the noise for `distribute`; different numbers give different noise."""
        noise = random_like(torch.Generator().manual_seed(self.seed + 1 + draw))
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
"""Name → function from (normal values, generator) to the values of the example."""


class Outcome(Enum):
    """The result of a law that could not be checked on an example."""

    UNMET = "the example cannot be placed, or the law does not say anything about it"


Fault = str | Outcome | None
"""The violation on an example, as what was found and expected; UNMET; or None if the law holds."""


def can_be_held(placement: Placement) -> bool:
    """Return whether values may have a placement: not if it is open, or is a state that only local forms use."""
    is_state = isinstance(placement, PackedPlacement) and not placement.of_values
    return placement.trait != "open" and not is_state


def if_concerned(concerns: Callable[[Placement], bool]) -> Callable[[Placement], Sequence[str]]:
    """Return a value for `Law.subjects`: the law as a whole for placements that it `concerns`, none for others."""
    return lambda placement: ("",) if concerns(placement) else ()


@attrs.frozen
class Law:
    """A property that every placement must have.

    Attributes:
        name: its name in messages.
        says: the law as a clause after "law 'name':".
        examples: placement → the examples.
        fault: (placement, example) → the violation.
        about: the methods and attributes that it checks. A fault is located at the first that the class declares.
        all_hold: (placement, examples) → whether it holds on all examples, if this is faster than one by one.
        subjects: placement → the parts of the law that must be met by an example: `""` for the law as a whole, or
            edges or strategies; none if the law does not apply. A subject that no example met is reported as unchecked.
        is_slow: whether a quick check omits it.
        is_of_class: whether the class declares its subjects, so one placement of the class must meet them.
        wanted: the remedy if no example meets it, as a clause.
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


def no_examples(placement: Placement) -> Iterable[Example]:
    """Return one empty example, for laws that need only the placement."""
    return [Example()]
