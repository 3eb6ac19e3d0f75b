"""Laws of rules: the strategies that a placement brings compute what the op computes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import attrs

from spmdir.checking.placements.examples import tuples
from spmdir.checking.placements.law import Example, Law
from spmdir.checking.placements.samples_of_ops import OPS, every_sample, samples_of
from spmdir.checking.rules.sample import Sample
from spmdir.checking.rules.soundness import judge, prepare, strategies_of
from spmdir.checking.rules.text_samples import TextRun, runs_of_texts
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.joint import JointPlacement
from spmdir.placements.cyclic import Cyclic
from spmdir.rules import Strategy
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.placement_texts import texts_of


@attrs.frozen(kw_only=True, eq=False)
class Run(Example):
    """One call of an op."""

    sample: Sample


def _runs(placement: Placement) -> Iterator[Run]:
    if placement.trait in ("open", "replicated"):
        return
    declared = frozenset(texts_of(type(placement)))
    tried = declared if _is_of_states(placement) else declared | OPS
    for one in samples_of(tried) if type(placement).lift is Placement.lift else every_sample():
        if one.op in tried or _lifts(placement, one.op):
            for count in (2, 3):
                yield Run(count, about=f"a sample of {one.op}", sample=one)


class _Named:
    """Stands for a rule and its strategies where only the op's name is known, for what that suffices to say."""

    def __init__(self, name: str):
        self.name = name

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


@cache
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
    others = (Cyclic(0, 2),) if _is_of_states(placement) else ()
    counts = dict.fromkeys((2, 3, *(len(numbers) for numbers in tuples(placement) if 1 < len(numbers) < 9)))
    found: dict[TextStrategy, list[TextRun]] = {}
    for op in texts_of(type(placement)):
        found |= runs_of_texts((placement, *others), samples_of(frozenset([op])), default(), tuple(counts))
    return found


def never_run(placement: Placement) -> list[str]:
    """Return the strategies written as text that the class of `placement` has and no sample is a call of."""
    return [f"{text.op}: {text}" for text, runs in _runs_of_texts(placement).items() if not runs]


def _texts(placement: Placement) -> Iterator[Runs]:
    if placement.trait in ("open", "replicated"):
        return
    for text, runs in _runs_of_texts(placement).items():
        if runs:
            yield Runs(about=f"{text.op}: {text}", runs=tuple(runs))


def _texts_sound(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Runs)
    for run in example.runs:
        verdict = judge(run.case, [("x", run.strategy)], Mesh({"x": run.count}))
        if verdict.fault:
            return f"{verdict.strategy} of {run.case.rule.text()} on {run.count} ranks: {verdict.fault}"
    return None


def _is_of_states(placement: Placement) -> bool:
    """Return whether no value has the placement, so that it occurs in local forms alone."""
    return isinstance(placement, JointPlacement) and not placement.of_values


def _sound(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Run)
    case = prepare(example.sample, default())
    # What any placement that shards may have, one of several ranges may too.
    others = (Cyclic(0, 2),) if _is_of_states(placement) else ()
    known = set(strategies_of(case.rule, example.ranks, others)) if others else set[Strategy]()
    for strategy in strategies_of(case.rule, example.ranks, (placement, *others)):
        if strategy in known:
            continue
        verdict = judge(case, [("x", strategy)], Mesh({"x": example.ranks}))
        if verdict.fault:
            return f"{verdict.strategy} of {case.rule.text()}: {verdict.fault}"
    return None


RULE_LAWS = (
    Law(
        "rules",
        "the strategies of ops in which it occurs compute what the ops do",
        _runs,
        _sound,
        ("lift", "passes", "scaled"),
    ),
    Law(
        "text strategies",
        "strategies that are written as text compute what the op does",
        _texts,
        _texts_sound,
        ("rules",),
    ),
)
