"""Calls for strategies written as text: the samples of their ops, these with other keywords and larger tensors, and
ones of the sizes that a placement names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.soundness import Case, prepare, strategies_of
from spmdir.core.placement.standard import Placement
from spmdir.rules import RuleSet, Strategy
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.strategies.placement_texts import texts_of
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import torch_op

TIMES = (2, 6)
"""How many times as large dimensions of larger samples are: shards of both parts of 1 and 3 elements are even then."""

MOST_ELEMENTS = 1 << 20
"""Elements that a tensor of a larger sample has at most."""

RUNS = 4
"""Larger samples on which a strategy is run."""


@attrs.frozen
class TextRun:
    """A strategy on one call, for an axis of `count` ranks; `is_derived` if the call is none of the given samples."""

    sample: Sample
    case: Case
    count: int
    strategy: Strategy
    is_derived: bool


def runs_of_texts(
    placements: Sequence[Placement], samples: Sequence[Sample], rules: RuleSet, counts: Sequence[int]
) -> dict[TextStrategy, list[TextRun]]:
    """Return the strategies that the classes of `placements` have as text → calls of it.

    They are `samples`, those that a strategy is of with each keyword changed, and for strategies that none of these is
    a call of, others that are made of them.

    Args:
        samples: of one op.
    """
    kinds = tuple(dict.fromkeys(kind for kind in map(type, placements) if texts_of(kind)))
    ops = dict.fromkeys(sample.op for sample in samples)
    found: dict[TextStrategy, list[TextRun]] = {
        text: [] for op in ops for text in rules.text_strategies(op, kinds) if text not in rules.text_strategies(op)
    }
    for sample in samples if found else ():
        for run in _runs(sample, placements, rules, counts, is_derived=False):
            found[run.strategy.text].append(run)  # type: ignore[index]
    for text, runs in found.items():
        for sample in {id(run.sample): run.sample for run in (*runs[:1], *runs[-1:])}.values():
            for variant in with_other_keywords(sample):
                others = _runs(variant, placements, rules, counts[:1], is_derived=True)
                runs += [run for run in others if run.strategy.text == text]
    lacking = {text for text, runs in found.items() if not runs}
    for sample in samples if lacking else ():
        for variant in larger_samples(sample, placements) if any(text.op == sample.op for text in lacking) else ():
            for run in _runs(variant, placements, rules, counts, is_derived=True):
                if run.strategy.text in lacking and len(found[run.strategy.text]) < RUNS:
                    found[run.strategy.text].append(run)
            lacking = {text for text in lacking if len(found[text]) < RUNS}
            if not lacking:
                return found
    return found


def _runs(
    sample: Sample, placements: Sequence[Placement], rules: RuleSet, counts: Sequence[int], is_derived: bool
) -> Iterator[TextRun]:
    try:
        case = prepare(sample, rules)
        for count in counts:
            for strategy in strategies_of(case.rule, count, placements):
                if strategy.text is not None and strategy.text not in rules.text_strategies(sample.op):
                    yield TextRun(sample, case, count, strategy, is_derived)
    except Exception:  # ops raise anything on sizes that they do not take
        if not is_derived:
            raise


OTHER: Mapping[str, Callable[[Any], Any]] = {
    "bool": lambda value: not value,
    "float": lambda value: 0.25 + (value or 0.0) / 2,
    "Optional[float]": lambda value: 0.25 + (value or 0.0) / 2,
}
"""Type of a keyword → a value of it that is another one."""


def with_other_keywords(sample: Sample) -> Iterator[Sample]:
    """Yield `sample` with another value for each keyword that is a number or a truth value: as `scale` of attention."""
    for argument in schema_of(torch_op(sample.op)).arguments:
        other = OTHER.get(str(argument.type))
        if other is not None and argument.has_default_value():
            value = other(sample.arguments.get(argument.name, argument.default_value))
            yield attrs.evolve(sample, arguments={**sample.arguments, argument.name: value})


def larger_samples(sample: Sample, placements: Sequence[Placement]) -> Iterator[Sample]:
    """Yield `sample` with larger tensors, and with dimensions and lists of sizes as the fields of `placements` say."""
    for times in TIMES:
        for scaled in _scaled_arguments(sample.arguments, times):
            yield from _resized(sample, lambda size, times=times: size * times if size > 1 else size, scaled)
    numbers = dict.fromkeys(value for placement in placements for value in _numbers(placement))
    sizes = dict.fromkeys(size for tensor in _tensors(sample) for size in tensor.shape if size > 1)
    for number in numbers:
        whole = sum(number) if isinstance(number, tuple) else number
        for size in sizes if whole > 1 else ():
            arguments = {
                name: number if isinstance(number, tuple) and _is_sizes(value) and sum(value) == size else value
                for name, value in sample.arguments.items()
            }
            yield from _resized(sample, lambda old, size=size, whole=whole: whole if old == size else old, arguments)


def _numbers(placement: Placement) -> Iterator[int | tuple[int, ...]]:
    for field in attrs.fields(type(placement)):
        value = getattr(placement, field.name)
        if (type(value) is int and field.name != "dim") or _is_sizes(value):
            yield value


def _is_sizes(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and all(type(one) is int and one >= 0 for one in value)


def _scaled_arguments(arguments: Mapping[str, Any], times: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments with lists of numbers, single numbers, or none of them `times` as large."""
    tried = []
    for kinds in ((), (tuple, list), (int,)):
        scaled = {
            name: value
            if name.startswith("dim") or type(value) not in kinds
            else value * times
            if type(value) is int
            else tuple(one * times for one in value)
            if _is_sizes(value)
            else value
            for name, value in arguments.items()
        }
        if scaled not in tried:
            tried.append(scaled)
    yield from reversed(tried)


def _tensors(sample: Sample) -> list[torch.Tensor]:
    lists = (operand if isinstance(operand, list) else [operand] for operand in sample.operands)
    return [tensor for each in lists for tensor in each if isinstance(tensor, torch.Tensor)]


def _resized(sample: Sample, size: Any, arguments: dict[str, Any]) -> Iterator[Sample]:
    """Yield `sample` with dimensions of `size(old size)` elements, unless that is too large."""

    def resized(operand: Any) -> Any:
        if isinstance(operand, list):
            return [resized(one) for one in operand]
        return _repeated(operand, [size(n) for n in operand.shape]) if isinstance(operand, torch.Tensor) else operand

    if all(math.prod(map(size, tensor.shape)) <= MOST_ELEMENTS for tensor in _tensors(sample)):
        yield attrs.evolve(sample, operands=tuple(map(resized, sample.operands)), arguments=arguments)


def _repeated(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return `tensor` repeated to `shape`; numbers that are no integers differ but keep their signs."""
    generator = torch.Generator().manual_seed(0)
    for dim, size in enumerate(shape):
        if size != tensor.shape[dim]:
            tensor = tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])
    if not tensor.dtype.is_floating_point:
        return tensor
    return tensor * (0.5 + torch.rand(tensor.shape, generator=generator, dtype=torch.float64)).to(tensor.dtype)
