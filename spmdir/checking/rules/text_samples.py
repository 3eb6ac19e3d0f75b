"""Find calls for strategies written as text: samples of their ops, and variants with other keywords or sizes."""

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

SIZE_FACTORS = (2, 6)
"""The factors of dimensions in larger samples. Parts of 1 and of 3 elements then have even shards."""

MAX_ELEMENTS = 1 << 20
"""The largest number of elements of a tensor in a larger sample."""

MAX_LARGER_RUNS = 4
"""The largest number of larger samples for one strategy."""


@attrs.frozen
class TextRun:
    """A strategy written as text for a call on an axis of `count` ranks. A derived call is a modified sample."""

    sample: Sample
    case: Case
    count: int
    strategy: Strategy
    is_derived: bool


def runs_of_texts(
    placements: Sequence[Placement], samples: Sequence[Sample], rules: RuleSet, counts: Sequence[int]
) -> dict[TextStrategy, list[TextRun]]:
    """Return the calls for each strategy that is written as text in the classes of `placements`.

    These are the samples that it applies to, and variants of them with other keywords. If it applies to no sample,
    larger variants of the samples are tried.

    Args:
        samples: the samples of one op.
    """
    kinds = tuple(dict.fromkeys(kind for kind in map(type, placements) if texts_of(kind)))
    ops = dict.fromkeys(sample.op for sample in samples)
    # `text_strategies(op)` contains the strategies of rules, which are checked without plug-in placements.
    runs_of_text: dict[TextStrategy, list[TextRun]] = {
        text: [] for op in ops for text in rules.text_strategies(op, kinds) if text not in rules.text_strategies(op)
    }
    if not runs_of_text:
        return {}
    for sample in samples:
        for run in _runs(sample, placements, rules, counts, is_derived=False):
            runs_of_text[run.strategy.text].append(run)  # type: ignore[index]
    for text, runs in runs_of_text.items():
        # Variants of two samples suffice.
        first_and_last = {id(run.sample): run.sample for run in (*runs[:1], *runs[-1:])}
        for sample in first_and_last.values():
            for variant in with_other_keywords(sample):
                variant_runs = _runs(variant, placements, rules, counts[:1], is_derived=True)
                runs += [run for run in variant_runs if run.strategy.text == text]
    without_runs = {text for text, runs in runs_of_text.items() if not runs}
    for sample in samples:
        if not any(text.op == sample.op for text in without_runs):
            continue
        for variant in larger_samples(sample, placements):
            for run in _runs(variant, placements, rules, counts, is_derived=True):
                if run.strategy.text in without_runs and len(runs_of_text[run.strategy.text]) < MAX_LARGER_RUNS:
                    runs_of_text[run.strategy.text].append(run)
            without_runs = {text for text in without_runs if len(runs_of_text[text]) < MAX_LARGER_RUNS}
            if not without_runs:
                return runs_of_text
    return runs_of_text


def _runs(
    sample: Sample, placements: Sequence[Placement], rules: RuleSet, counts: Sequence[int], is_derived: bool
) -> Iterator[TextRun]:
    """Yield the runs of a sample with the strategies that the placements declare as text.

    A derived sample whose op fails has no runs. A failure of any other sample is an error.
    """
    try:
        case = prepare(sample, rules)
        for count in counts:
            for strategy in strategies_of(case.rule, count, placements):
                if strategy.text is not None and strategy.text not in rules.text_strategies(sample.op):
                    yield TextRun(sample, case, count, strategy, is_derived)
    except Exception:  # ops may raise any exception for unsupported sizes
        if not is_derived:
            raise


CHANGES_OF_TYPE: Mapping[str, Callable[[Any], Any]] = {
    "bool": lambda value: not value,
    "float": lambda value: 0.25 + (value or 0.0) / 2,
    "Optional[float]": lambda value: 0.25 + (value or 0.0) / 2,
}
"""Type of a keyword → function from its value to a different one."""


def with_other_keywords(sample: Sample) -> Iterator[Sample]:
    """Yield `sample` with another value for each keyword that is a number or Boolean, such as `scale` of attention."""
    for argument in schema_of(torch_op(sample.op)).arguments:
        change = CHANGES_OF_TYPE.get(str(argument.type))
        if change is not None and argument.has_default_value():
            value = change(sample.arguments.get(argument.name, argument.default_value))
            yield attrs.evolve(sample, arguments={**sample.arguments, argument.name: value})


def larger_samples(sample: Sample, placements: Sequence[Placement]) -> Iterator[Sample]:
    """Yield `sample` with larger tensors, and with sizes from the fields of `placements`.

    For `Ragged(0, [1, 6, 3])`, each size of a dimension is replaced by 10 in turn.
    """
    for times in SIZE_FACTORS:
        for scaled in _scaled_arguments(sample.arguments, times):
            yield from _resized(sample, lambda size, times=times: size * times if size > 1 else size, scaled)
    fields = dict.fromkeys(value for placement in placements for value in _size_fields(placement))
    sizes = dict.fromkeys(size for tensor in _tensors(sample) for size in tensor.shape if size > 1)
    for field in fields:
        new_size = sum(field) if isinstance(field, tuple) else field
        if new_size <= 1:
            continue
        for size in sizes:
            # A list of sizes of this dimension, as of `split_with_sizes`, becomes the list in the field.
            arguments = {
                name: field if isinstance(field, tuple) and _is_sizes(value) and sum(value) == size else value
                for name, value in sample.arguments.items()
            }
            yield from _resized(sample, lambda old, size=size, new=new_size: new if old == size else old, arguments)


def _size_fields(placement: Placement) -> Iterator[int | tuple[int, ...]]:
    """Yield the integers and tuples of sizes in the fields of a placement, without `dim`."""
    for field in attrs.fields(type(placement)):
        value = getattr(placement, field.name)
        if (type(value) is int and field.name != "dim") or _is_sizes(value):
            yield value


def _is_sizes(value: Any) -> bool:
    """Return whether a value is a nonempty list or tuple of sizes."""
    return isinstance(value, (tuple, list)) and bool(value) and all(type(size) is int and size >= 0 for size in value)


def _scaled_arguments(arguments: Mapping[str, Any], times: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments with integers multiplied by `times`, with lists of sizes multiplied by it, and unchanged.

    A variant that changes nothing is omitted. Dimensions are not multiplied: arguments whose names start with "dim".

    For example, {"size": (2, 3), "groups": 2, "dim": 1} times 2 yields three variants:
        {"size": (2, 3), "groups": 4, "dim": 1}
        {"size": (4, 6), "groups": 2, "dim": 1}
        {"size": (2, 3), "groups": 2, "dim": 1}
    """

    def is_scaled(name: str, value: Any, is_list: bool) -> bool:
        """Return whether an argument is multiplied: a list of sizes if `is_list`, else an integer."""
        return not name.startswith("dim") and (_is_sizes(value) if is_list else type(value) is int)

    with_integers = {
        name: value * times if is_scaled(name, value, is_list=False) else value for name, value in arguments.items()
    }
    with_lists = {
        name: tuple(size * times for size in value) if is_scaled(name, value, is_list=True) else value
        for name, value in arguments.items()
    }
    if with_integers != arguments:
        yield with_integers
    if with_lists != arguments:
        yield with_lists
    yield dict(arguments)


def _tensors(sample: Sample) -> list[torch.Tensor]:
    """Return the tensors among the operands of a sample, also those in lists."""
    tensors = []
    for operand in sample.operands:
        members = operand if isinstance(operand, list) else [operand]
        tensors += [member for member in members if isinstance(member, torch.Tensor)]
    return tensors


def _resized(sample: Sample, new_size: Callable[[int], int], arguments: dict[str, Any]) -> Iterator[Sample]:
    """Yield `sample` with dimensions of `new_size(old size)` elements, if no tensor becomes too large."""

    def resize(operand: Any) -> Any:
        """Return an operand with resized tensors; other operands unchanged."""
        if isinstance(operand, list):
            return [resize(tensor) for tensor in operand]
        return _repeated(operand, list(map(new_size, operand.shape))) if isinstance(operand, torch.Tensor) else operand

    if all(math.prod(map(new_size, tensor.shape)) <= MAX_ELEMENTS for tensor in _tensors(sample)):
        yield attrs.evolve(sample, operands=tuple(map(resize, sample.operands)), arguments=arguments)


def _repeated(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return `tensor` repeated to `shape`. Floating-point elements are scaled at random, but keep their signs."""
    generator = torch.Generator().manual_seed(0)
    for dim, size in enumerate(shape):
        if size != tensor.shape[dim]:
            tensor = tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])
    if not tensor.dtype.is_floating_point:
        return tensor
    return tensor * (0.5 + torch.rand(tensor.shape, generator=generator, dtype=torch.float64)).to(tensor.dtype)
