"""Laws of rules: strategies with a placement compute the same results as one device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import attrs

from spmdir.checking.placements.law import Example, Fault, Law, Outcome, is_state_placement
from spmdir.checking.placements.layouts import tuple_fields, usual_counts
from spmdir.checking.placements.op_samples import USUAL_OPS, every_sample, samples_of, with_supported_type
from spmdir.checking.rules.call_checks import describe
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.soundness import judge, prepare, strategies_of
from spmdir.checking.rules.text_samples import TextRun, runs_of_texts
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import plugins
from spmdir.placements.cyclic import Cyclic
from spmdir.rules import Strategy
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.equivalent_ops import other_names
from spmdir.rules.strategies.placement_texts import texts_of


@attrs.frozen(kw_only=True, eq=False)
class SampleCall(Example):
    """A sample call of an op. The strategies of its rule are checked on it."""

    sample: Sample


MORE_COUNTS = (5, 8, 7, 6)
"""Numbers of ranks above the usual ones. One sample in SAMPLES_PER_LARGE_COUNT is checked on one of them, in turn."""

SAMPLES_PER_LARGE_COUNT = 6
"""Every so many samples, one is also checked on a larger number of ranks."""


def _sample_calls(placement: Placement) -> Iterator[SampleCall]:
    """Yield sample calls of the ops for which the placement may have strategies, on the usual numbers of ranks.

    Every SAMPLES_PER_LARGE_COUNT-th sample is also called on a larger number of ranks.
    """
    if not (_adds_strategies(placement) or texts_of(type(placement))):
        return
    declared_ops = frozenset(other_names(texts_of(type(placement))))
    ops = declared_ops if is_state_placement(placement) else declared_ops | USUAL_OPS
    lifted_ops = frozenset(_lifted_ops(placement))
    samples = samples_of(ops) if type(placement).lift is Placement.lift else every_sample()
    selected = (with_supported_type(sample, placement) for sample in samples if sample.op in ops | lifted_ops)
    for index, sample in enumerate(selected):
        counts = usual_counts(placement)
        if index % SAMPLES_PER_LARGE_COUNT == 0:
            counts = [*counts, MORE_COUNTS[index // SAMPLES_PER_LARGE_COUNT % len(MORE_COUNTS)]]
        for count in counts:
            subject = sample.op if sample.op in lifted_ops else ""
            yield SampleCall(count, note=f"a sample of {sample.op}", subject=subject, sample=sample)


def _adds_strategies(placement: Placement) -> bool:
    """Return whether ops have strategies with a placement because of its trait or its `lift`.

    Standard placements occur in the rules themselves, which `spmd check-rules` checks.
    """
    has_strategies = placement.trait in ("shard", "partial") or type(placement).lift is not Placement.lift
    return has_strategies and bool(plugins([placement]))


def _subjects(placement: Placement) -> list[str]:
    """Return the ops that `lift` of a placement names, and "" for strategies that follow from its trait."""
    if not _adds_strategies(placement) or usual_counts(placement) == [1]:
        return []
    ops = _lifted_ops(placement)
    if not ops or len(ops) == len(default().names):  # `lift` names no ops: it does not read `rule.name`
        return [""]
    return [*ops, ""] if placement.trait in ("shard", "partial") else [*ops]


@cache
def _lifted_ops(placement: Placement) -> tuple[str, ...]:
    """Return the ops to which `lift` of the placement may add strategies."""
    return tuple(op for op in default().names if _may_lift(placement, op))


class _NameOnly:
    """A rule of which only the name of the op can be read, passed to `lift` as the rule and as its strategies.

    If `lift` reads more than the name, it raises: then it may add strategies to the op.
    """

    def __init__(self, name: str):
        self.name = name

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


def _may_lift(placement: Placement, op: str) -> bool:
    """Return whether `lift` of a placement may add strategies to `op`, to judge by the name of the op."""
    if type(placement).lift is Placement.lift:
        return False
    rule = _NameOnly(op)
    try:
        return any(True for _ in placement.lift(rule, rule))  # type: ignore[arg-type]
    except Exception:
        return True


@attrs.frozen(kw_only=True, eq=False)
class TextStrategyRuns(Example):
    """Calls on which one strategy written as text is checked."""

    runs: tuple[TextRun, ...]


@lru_cache(maxsize=1)
def _runs_of_texts(placement: Placement) -> dict[TextStrategy, list[TextRun]]:
    """Return strategy that the placement declares as text → the sample calls that it applies to.

    Strategies that apply to no call have an empty list. Open and replicated placements have no strategies.
    """
    if placement.trait in ("open", "replicated"):
        return {}
    tuple_lengths = [len(numbers) for numbers in tuple_fields(placement) if 1 < len(numbers) < 9]
    counts = dict.fromkeys((*usual_counts(placement), *tuple_lengths))
    runs: dict[TextStrategy, list[TextRun]] = {}
    for op in dict.fromkeys(other_names(texts_of(type(placement)))):
        samples = [with_supported_type(sample, placement) for sample in samples_of(frozenset([op]))]
        runs |= runs_of_texts((placement, *_companions(placement)), samples, default(), tuple(counts))
    return runs


def _companions(placement: Placement) -> tuple[Placement, ...]:
    """Return placements that are checked together with a state placement, in strategies for any shard placement.

    The shards of `Cyclic` have several ranges.
    """
    return (Cyclic(0, 2),) if is_state_placement(placement) else ()


def _subject(text: TextStrategy) -> str:
    """Return the subject of the law for a strategy: `OP: (…) -> (…)`."""
    return f"{text.op}: {text}"


def _text_subjects(placement: Placement) -> list[str]:
    """Return the subjects of the strategies that the placement declares as text."""
    return [_subject(text) for text in _runs_of_texts(placement)]


def _text_strategy_runs(placement: Placement) -> Iterator[TextStrategyRuns]:
    """Yield one example for each declared strategy that applies to a sample call."""
    for text, runs in _runs_of_texts(placement).items():
        if runs:
            yield TextStrategyRuns(note=_subject(text), subject=_subject(text), runs=tuple(runs))


def _find_text_strategy_fault(placement: Placement, example: Example) -> Fault:
    """Return a fault if a declared strategy has a wrong result for a sample call; None if all results are right.

    NOT_APPLICABLE if no call was run, because the placements cannot represent its operands.
    """
    assert isinstance(example, TextStrategyRuns)
    is_run = False
    for run in example.runs:
        verdict = judge(run.case, [("x", run.strategy)], Mesh({"x": run.count}))
        if verdict.fault:
            call = f"{describe(run.sample)} on {run.count} ranks"
            return f"{verdict.strategy} of {run.case.rule.text()}, called with {call}: {verdict.fault}"
        is_run |= verdict.is_run
    return None if is_run else Outcome.NOT_APPLICABLE


def _find_strategy_fault(placement: Placement, example: Example) -> Fault:
    """Return a fault if a strategy with the placement has a wrong result for a sample call; None if all are right.

    NOT_APPLICABLE if no strategy was run, because the placements cannot represent the operands. Strategies that have
    only the companion of a state placement are not checked.
    """
    assert isinstance(example, SampleCall)
    case, companions = prepare(example.sample, default()), _companions(placement)
    without_placement = set(strategies_of(case.rule, example.ranks, companions)) if companions else set[Strategy]()
    is_run = False
    for strategy in strategies_of(case.rule, example.ranks, (placement, *companions)):
        if strategy in without_placement:
            continue
        verdict = judge(case, [("x", strategy)], Mesh({"x": example.ranks}))
        if verdict.fault:
            return f"{verdict.strategy} of {case.rule.text()}: {verdict.fault}"
        is_run |= verdict.is_run
    return None if is_run else Outcome.NOT_APPLICABLE


RULE_LAWS = (
    Law(
        "rules",
        "strategies with the placement compute the results of their ops",
        _sample_calls,
        _find_strategy_fault,
        ("lift", "passes", "scaled"),
        subjects=_subjects,
        is_of_class=True,
    ),
    Law(
        "text strategies",
        "strategies written as text compute the results of their ops",
        _text_strategy_runs,
        _find_text_strategy_fault,
        ("rules",),
        subjects=_text_subjects,
        is_of_class=True,
    ),
)
