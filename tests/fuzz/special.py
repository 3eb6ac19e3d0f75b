"""Rules run on zeros, infinities and NaN: as literal arguments of an op, and in its operands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from spmdir.checking.rules.call_checks import describe
from spmdir.checking.rules.reasons import why_finite, why_numbers_differ, why_undetermined
from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.sound_assignments import FAILURES
from spmdir.checking.rules.soundness import axis_verdicts, prepare
from spmdir.rules.rule_set import default
from tests.fuzz.batch import Kind, Wrong

NUMBERS = (0, 1, -1, 0.0, -0.0, 2.5, float("inf"), float("-inf"), float("nan"))
VALUES = (0.0, -0.0, float("inf"), float("-inf"), float("nan"))


@attrs.frozen
class Special:
    """A call of an op with special values; `values` are among its operands' elements, `numbers` its arguments."""

    sample: Sample
    numbers: Mapping[str | int, Any]
    values: tuple[float, ...]
    ranks: int

    def made(self) -> Sample:
        torch.manual_seed(0)
        operands = tuple(self.numbers.get(i, o) for i, o in enumerate(map(self._sprinkled, self.sample.operands)))
        named = {k: v for k, v in self.numbers.items() if isinstance(k, str)}
        return attrs.evolve(self.sample, operands=operands, arguments={**self.sample.arguments, **named})

    def _sprinkled(self, operand: Any) -> Any:
        if isinstance(operand, list):
            return [self._sprinkled(one) for one in operand]
        if not self.values or not isinstance(operand, Tensor) or not operand.is_floating_point():
            return operand
        chosen = torch.tensor(self.values, dtype=operand.dtype)[torch.randint(len(self.values), operand.shape)]
        return torch.where(torch.rand(operand.shape) < 0.2, chosen, operand)

    def __str__(self) -> str:
        return f"{self.sample.op} {describe(self.made())} on {self.ranks} ranks, among operands {self.values}"


def check(case: Special) -> str | None:
    """Run every strategy of the rule; raises Wrong for the first that is not right."""
    rules, sample = default(), case.made()
    try:
        prepared = prepare(sample, rules)
    except FAILURES as error:
        return f"torch: {type(error).__name__}"
    prepared = attrs.evolve(prepared, finite=not case.values)
    for verdict in axis_verdicts(prepared, (case.ranks,)):
        if verdict.fault and not why_numbers_differ(sample.op, verdict.strategy):
            raise Wrong(f"{prepared.rule.text()}, {verdict.strategy}: {verdict.fault}")
    return None


@cache
def samples() -> tuple[Sample, ...]:
    """Return the packaged calls whose results are determined, and that torch's kernels can be asked of such values."""
    fit = (s for s in all_samples(default()) if s.compare and not why_undetermined(s.op) and not why_finite(s.op))
    return tuple(fit)


@st.composite
def specials(draw: st.DrawFn) -> Special:
    """Return a packaged call with other numbers for its arguments, with special values in its operands, or with
    both."""
    known = samples()
    sample = known[draw(st.integers(0, len(known) - 1))]
    places = [i for i, operand in enumerate(sample.operands) if _number(operand)]
    places += [name for name, value in sample.arguments.items() if isinstance(value, float)]
    numbers = {place: draw(st.sampled_from(NUMBERS)) for place in places if draw(st.booleans())}
    values = () if numbers else tuple(draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)))
    return Special(sample, numbers, values, draw(st.sampled_from((2, 3, 1))))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


SPECIAL = Kind("special", specials(), check, examples=60, seconds=30, share=1)
