"""Laws of rules: the strategies that a placement brings compute what the op computes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import attrs

from spmdir.checking.placements.law import Example, Fault, Law, Outcome
from spmdir.checking.placements.layouts import tuples, usual_counts
from spmdir.checking.placements.samples_of_ops import OPS, every_sample, samples_of, typed_for
from spmdir.checking.rules.call_checks import describe
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.soundness import judge, prepare, strategies_of
from spmdir.checking.rules.text_samples import TextRun, runs_of_texts
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.standard import plugins
from spmdir.placements.cyclic import Cyclic
from spmdir.rules import Strategy
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.equivalent_ops import other_names
from spmdir.rules.strategies.placement_texts import texts_of


@attrs.frozen(kw_only=True, eq=False)
class Run(Example):
    """One call of an op."""

    sample: Sample


MORE = (5, 8, 7, 6)
"""Numbers of ranks beside 2 and 3, one of them for every EACH samples."""

EACH = 6


def _runs(placement: Placement) -> Iterator[Run]:
    if not (_is_lifted(placement) or texts_of(type(placement))):
        return
    declared = frozenset(other_names(texts_of(type(placement))))
    tried = declared if _is_of_states(placement) else declared | OPS
    lifted = frozenset(_lifted_ops(placement))
    some = samples_of(tried) if type(placement).lift is Placement.lift else every_sample()
    for at, one in enumerate(typed_for(placement, one) for one in some if one.op in tried | lifted):
        more = MORE[at // EACH % len(MORE)]
        for count in (*usual_counts(placement), *((more,) if at % EACH == 0 else ())):
            subject = one.op if one.op in lifted else ""
            yield Run(count, about=f"a sample of {one.op}", subject=subject, sample=one)


def _is_lifted(placement: Placement) -> bool:
    """Return whether strategies of ops follow from the trait of a placement, or its `lift` adds some.

    Those of standard placements are those of the rules, which `spmd check-rules` checks.
    """
    lifts = placement.trait in ("shard", "partial") or type(placement).lift is not Placement.lift
    return lifts and bool(plugins([placement]))


def _subjects(placement: Placement) -> list[str]:
    """Return the ops that a placement adds strategies to by their names, and "" for those that follow from others."""
    if not _is_lifted(placement) or usual_counts(placement) == [1]:
        return []
    named = _lifted_ops(placement)
    if not named or len(named) == len(default().names):  # by no names, or by what ops are like
        return [""]
    return [*named, ""] if placement.trait in ("shard", "partial") else [*named]


@cache
def _lifted_ops(placement: Placement) -> tuple[str, ...]:
    return tuple(op for op in default().names if _lifts(placement, op))


class _Named:
    """Stands for a rule and its strategies where only the op's name is known, for what that suffices to say."""

    def __init__(self, name: str):
        self.name = name

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


def _lifts(placement: Placement, op: str) -> bool:
    """Return whether a placement may bring strategies of `op` of its own."""
    if type(placement).lift is Placement.lift:
        return False
    named = _Named(op)
    try:
        return any(True for _ in placement.lift(named, named))  # type: ignore[arg-type]
    except Exception:
        return True


@attrs.frozen(kw_only=True, eq=False)
class Runs(Example):
    """Calls on which one strategy is run."""

    runs: tuple[TextRun, ...]


@lru_cache(maxsize=1)
def _runs_of_texts(placement: Placement) -> dict[TextStrategy, list[TextRun]]:
    if placement.trait in ("open", "replicated"):
        return {}
    others = (Cyclic(0, 2),) if _is_of_states(placement) else ()
    counts = dict.fromkeys(
        (*usual_counts(placement), *(len(numbers) for numbers in tuples(placement) if 1 < len(numbers) < 9))
    )
    found: dict[TextStrategy, list[TextRun]] = {}
    for op in dict.fromkeys(other_names(texts_of(type(placement)))):
        samples = [typed_for(placement, one) for one in samples_of(frozenset([op]))]
        found |= runs_of_texts((placement, *others), samples, default(), tuple(counts))
    return found


def _named(text: TextStrategy) -> str:
    return f"{text.op}: {text}"


def _named_texts(placement: Placement) -> list[str]:
    return [_named(text) for text in _runs_of_texts(placement)]


def _texts(placement: Placement) -> Iterator[Runs]:
    for text, runs in _runs_of_texts(placement).items():
        if runs:
            yield Runs(about=_named(text), subject=_named(text), runs=tuple(runs))


def _texts_sound(placement: Placement, example: Example) -> Fault:
    assert isinstance(example, Runs)
    is_met = False
    for run in example.runs:
        verdict = judge(run.case, [("x", run.strategy)], Mesh({"x": run.count}))
        if verdict.fault:
            call = f"{describe(run.sample)} on {run.count} ranks"
            return f"{verdict.strategy} of {run.case.rule.text()}, called with {call}: {verdict.fault}"
        is_met |= verdict.is_run
    return None if is_met else Outcome.UNMET


def _is_of_states(placement: Placement) -> bool:
    """Return whether no value has the placement, so that it occurs in local forms alone."""
    return isinstance(placement, PackedPlacement) and not placement.of_values


def _sound(placement: Placement, example: Example) -> Fault:
    assert isinstance(example, Run)
    case = prepare(example.sample, default())
    # What any placement that shards may have, one of several ranges may too.
    others = (Cyclic(0, 2),) if _is_of_states(placement) else ()
    known = set(strategies_of(case.rule, example.ranks, others)) if others else set[Strategy]()
    is_met = False
    for strategy in strategies_of(case.rule, example.ranks, (placement, *others)):
        if strategy in known:
            continue
        verdict = judge(case, [("x", strategy)], Mesh({"x": example.ranks}))
        if verdict.fault:
            return f"{verdict.strategy} of {case.rule.text()}: {verdict.fault}"
        is_met |= verdict.is_run
    return None if is_met else Outcome.UNMET


RULE_LAWS = (
    Law(
        "rules",
        "the strategies of ops in which it occurs compute what the ops do",
        _runs,
        _sound,
        ("lift", "passes", "scaled"),
        subjects=_subjects,
        is_of_class=True,
    ),
    Law(
        "text strategies",
        "strategies that are written as text compute what the op does",
        _texts,
        _texts_sound,
        ("rules",),
        subjects=_named_texts,
        is_of_class=True,
    ),
)
