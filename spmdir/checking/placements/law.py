"""Define `Law`, a property that every placement must have, and `Example`, a tensor on some ranks to check it on."""

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
    """The input of a law: a tensor on some ranks.

    Attributes:
        count: the number of ranks along the axis.
        shape, dtype: the global shape and element type of the tensor.
        values: "random", "positive", "special" (also NaN, infinities and negative zeros), "zero", "sparse" (few large
            elements), or "low-rank" (all rows are multiples of one row).
        scale: the factor of finite values.
        noise_scale: the factor of the noise from which `distribute` makes partial values.
        note: additional text in errors, such as the step that is run.
        subject: the part of the law that the example covers, such as an edge or a strategy; see `Law.subjects`.
    """

    count: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: DType | None = None
    values: str = "random"
    scale: float = 1.0
    noise_scale: float = 1.0
    note: str = ""
    subject: str = ""

    def __str__(self) -> str:
        """Return the example as text, such as `tensor<5x4xf32> of random values times 100, 2 ranks`."""
        parts = [self.note] if self.note else []
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
        """The number of ranks. The example must have one."""
        assert self.count is not None
        return self.count

    @property
    def declarations(self) -> tuple[str, ...]:
        """The methods that the example checks, in addition to those of its law."""
        return ()

    @property
    def seed(self) -> int:
        """The seed of the random values. Equal examples have equal seeds in every process."""
        return zlib.crc32(str(self).encode())

    def tensor(self) -> torch.Tensor:
        """Return the tensor of the example; f32 if it has no element type. Each call returns the same values.

        Elements are normal numbers mapped by VALUES, integers up to 100 in magnitude, or random booleans.
        """
        generator = torch.Generator().manual_seed(self.seed)
        shape, dtype = self.shape or (), TORCH_DTYPES[self.dtype or F32]
        if dtype == torch.bool:
            return torch.rand(shape, generator=generator) > 0.5
        if not (dtype.is_floating_point or dtype.is_complex):
            bound = int(100 * self.scale)
            return torch.randint(-bound if dtype.is_signed else 0, bound, shape, generator=generator).to(dtype)
        parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(1 + dtype.is_complex)]
        real, *imaginary = (VALUES[self.values](part, generator) * self.scale for part in parts)
        return torch.complex(real, *imaginary).to(dtype) if imaginary else real.to(dtype)

    def noise(self, draw: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the noise for `Placement.distribute`: tensor → random values. Each `draw` gives other values."""
        noise = random_like(torch.Generator().manual_seed(self.seed + 1 + draw))
        if self.noise_scale == 1:
            return noise
        return lambda tensor: (noise(tensor) * self.noise_scale).to(tensor.dtype)


def _special(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Replace about half of the elements by NaN, infinities and -0."""
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0], dtype=torch.float64)
    replacement = special[torch.randint(4, value.shape, generator=generator)]
    return torch.where(torch.rand(value.shape, generator=generator) < 0.5, replacement, value)


def _sparse(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Keep about a tenth of the elements, large and positive, and set the others to 0."""
    return value.abs() * 1e3 * (torch.rand(value.shape, generator=generator) < 0.1)


def _low_rank(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return nonnegative values with the shape of `value`. If it has 2 dimensions, they are a matrix of rank 1."""
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

    NOT_APPLICABLE = "the placement cannot hold the tensor of the example, or the law does not restrict it"


Fault = str | Outcome | None
"""The violation on an example, as `found; expected`; NOT_APPLICABLE; or None if the law holds."""


def is_value_placement(placement: Placement) -> bool:
    """Return whether values may have a placement. Open placements and states of local forms have no values."""
    return placement.trait != "open" and not is_state_placement(placement)


def is_state_placement(placement: Placement) -> bool:
    """Return whether a placement occurs only in local forms, as a state of several tensors."""
    return isinstance(placement, PackedPlacement) and not placement.of_values


def if_applicable(is_applicable: Callable[[Placement], bool]) -> Callable[[Placement], Sequence[str]]:
    """Return a value for `Law.subjects`: the entire law if it `is_applicable` to a placement, else no subjects."""
    return lambda placement: ("",) if is_applicable(placement) else ()


@attrs.frozen
class Law:
    """A property that every placement must have.

    Attributes:
        name: its name in messages.
        statement: the property, as a clause in parentheses after the name.
        examples: placement → the examples.
        find_fault: (placement, example) → the violation.
        declarations: the methods and attributes that it checks. The location of a fault is the first of them that the
            class declares.
        holds_on_all: (placement, examples) → whether it holds on all examples, if this is faster than one by one.
        subjects: placement → the parts of the law that examples must cover, such as edges or strategies. `""` is the
            entire law. There are none if the law does not apply. Subjects without an example are reported as unchecked.
        is_slow: whether a quick check omits it.
        is_of_class: whether the class declares its subjects. Then it suffices that one placement of the class covers
            them.
        remedy: the remedy if no example covers it, as a clause.
    """

    name: str
    statement: str
    examples: Callable[[Placement], Iterable[Example]]
    find_fault: Callable[[Placement, Example], Fault]
    declarations: tuple[str, ...] = ()
    holds_on_all: Callable[[Placement, Sequence[Example]], bool] | None = None
    subjects: Callable[[Placement], Iterable[str]] = lambda placement: ("",)
    is_slow: bool = False
    is_of_class: bool = False
    remedy: str = "add shapes that fit to `sample_shapes`, or add a sample of the op"


def empty_example(placement: Placement) -> Iterable[Example]:
    """Return one example without a tensor, for laws that need only the placement."""
    return [Example()]
