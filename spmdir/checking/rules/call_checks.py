"""Checks one op: its samples, their variants, what its rule says of them, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
from torch import Tensor

from spmdir.checking.rules.jobs import Options
from spmdir.checking.rules.numbers import number_variants
from spmdir.checking.rules.possible import FAILURES, Possible, Trial
from spmdir.checking.rules.reasons import why_finite, why_left_out, why_numbers_differ, why_undetermined
from spmdir.checking.rules.report import Fault, Missing, OpReport
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.soundness import Case, Verdict, meta, on_one_axis, prepare
from spmdir.checking.rules.soundness import judge as judged_of
from spmdir.checking.rules.text_samples import runs_of_texts
from spmdir.checking.rules.values import hard_variants, special_variants
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Placement, R, parse_placement
from spmdir.rules import RuleSet
from spmdir.rules.language.syntax_tree import TextStrategy

TRIED_IN = (2, 3)
"""The numbers of ranks on which missing strategies are looked for."""

REPEATABLE = ("max", "min", "any", "all")
"""The reductions that leave one value that all ranks have as it is."""


@attrs.frozen
class Tried:
    """A sample that was run: its text, itself, ready to be run, and its variants, likewise."""

    text: str
    sample: Sample
    case: Case
    variants: list[Case]


@attrs.frozen
class Found:
    """What a search for missing strategies found in one sample: what is right, and the operands of what is not."""

    right: tuple[Possible, ...]
    wrong: frozenset[tuple[Placement, ...]]


def check_op(
    op: str, samples: Sequence[Sample], rules: RuleSet, options: Options, say: Callable[[str], None]
) -> OpReport:
    """Return the report of one op; `say` is told what is being done, so that a crash has a place."""
    cases: list[Tried] = []
    notes: list[str] = []
    faults: list[Fault] = []
    judged: dict[tuple[int, str], bool] = {}
    met: set[TextStrategy] = set()
    extras = tuple(map(parse_placement, options.placements))

    def judge(number: int, name: str, verdict: Verdict) -> None:
        if not verdict.is_run:
            return
        met.update(verdict.texts)
        key = number, verdict.strategy
        judged[key] = judged.get(key, True) and verdict.fault is None
        if verdict.fault is not None:
            shown = f"{cases[number].text} with {name}" if name else cases[number].text
            faults.append(Fault(shown, verdict.strategy, verdict.mesh, verdict.fault))

    for sample in samples:
        text = describe(sample)
        say(f"preparing {text}")
        case = _case(sample, rules, text, notes)
        if case is None:
            continue
        tried = [("", case), *variants(sample, case, rules)]
        number = len(cases)
        cases.append(Tried(text, sample, case, [variant for name, variant in tried if name]))
        for name, variant in tried:
            say(f"running {text} with {name}" if name else f"running {text}")
            for verdict in on_one_axis(variant, options.counts, extras):
                judge(number, name, verdict)
        say(f"running {text} with other numbers")
        for name, verdict in () if extras else with_numbers(sample, case, rules):
            judge(number, name, verdict)
    texts = runs_of_texts(extras, samples, rules, options.counts) if extras else {}
    for runs in texts.values():
        for run in runs:
            if run.is_derived:
                say(f"running {(described := describe(run.sample))}")
                cases.append(Tried(described, run.sample, run.case, []))
                judge(len(cases) - 1, "", judged_of(run.case, [("x", run.strategy)], Mesh({"x": run.count})))
    if reason := why_undetermined(op):
        notes.append(f"compared in shape alone: {reason}")
    if reason := why_finite(op):
        notes.append(f"not run on NaN and infinities: {reason}")
    unchecked: list[str] = []
    for text in (text for text in (texts or rules.text_strategies(op)) if text not in met):
        if reason := _why_unchecked(text, rules, extras):
            notes.append(f"not checked: {text}: {reason}")
        else:
            unchecked.append(str(text))
    missing = _missing(op, cases, rules, say) if options.missing and not extras else ()
    sound = sum(judged.values())
    return OpReport(
        op,
        _family(op, rules),
        len(cases),
        sound,
        len(judged) - sound,
        tuple(faults),
        missing,
        tuple(dict.fromkeys(notes)),
        unchecked=tuple(unchecked),
        reason=rules.records[op][0].unchecked,
    )


def _why_unchecked(text: TextStrategy, rules: RuleSet, extras: Sequence[Placement]) -> str | None:
    """Return the reason that a file gives for what cannot be checked: in front of a strategy, or in the class."""
    declared = (type(placement).unchecked.get(text.op) for placement in extras)
    records = (record for record in rules.declared.get(text.op, ()) if record.line == text.location.line)
    return next(filter(None, (*declared, *(record.unchecked for record in records))), None)


def _case(sample: Sample, rules: RuleSet, text: str, notes: list[str]) -> Case | None:
    if why_undetermined(sample.op):
        sample = attrs.evolve(sample, compare=False)
    try:
        return prepare(sample, rules)
    except SpmdirError as error:
        notes.append(f"{text}: {error.message}")
    except FAILURES as error:
        notes.append(f"{text}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return None


def variants(sample: Sample, case: Case, rules: RuleSet) -> Iterator[tuple[str, Case]]:
    """Yield (name, the sample with NaN or infinities among its numbers), where the op takes them."""
    if all(right is None for right in case.expected) or why_finite(sample.op):
        return
    for name, variant in special_variants(sample):
        yield from ((name, prepared) for prepared in _prepared([variant], rules))


def _prepared(samples: Iterable[Sample], rules: RuleSet) -> Iterator[Case]:
    for sample in samples:
        try:
            yield prepare(sample, rules)
        except (SpmdirError, *FAILURES):
            continue


def with_numbers(sample: Sample, case: Case, rules: RuleSet) -> Iterator[tuple[str, Verdict]]:
    """Yield (`alpha=inf`, a verdict on `sample` with that number), where the op takes it; two ranks show as much as
    more."""
    if all(right is None for right in case.expected) or why_finite(sample.op):
        return
    for name, variant in number_variants(sample):
        try:
            prepared = attrs.evolve(prepare(variant, rules), finite=True)
        except (SpmdirError, *FAILURES):
            continue
        verdicts = on_one_axis(prepared, (2,))
        yield from ((name, v) for v in verdicts if not why_numbers_differ(sample.op, v.strategy))


def _missing(op: str, cases: Sequence[Tried], rules: RuleSet, say: Callable[[str], None]) -> tuple[Missing, ...]:
    found: list[tuple[Tried, Found]] = []
    for tried in cases:
        if not telling(tried.case):
            continue
        say(f"looking for missing strategies of {tried.text}")
        hard = () if why_finite(op) else _prepared(hard_variants(tried.sample), rules)
        found.append((tried, left_out(tried.case, tried.variants, hard)))
    agreed: dict[object, Possible | None] = {}
    for tried, each in found:
        kind = alike(tried.case)
        agreed.update(((kind, operands), None) for operands in each.wrong)
        for possible in each.right:
            before = agreed.get((kind, possible.operands), possible)
            agreed[kind, possible.operands] = before and before.both(possible)
    texts: dict[str, list[str]] = {}
    for tried, each in found:
        for operands in (possible.operands for possible in each.right):
            if possible := agreed[alike(tried.case), operands]:
                texts.setdefault(str(possible), []).append(tried.text)
    return tuple(Missing(s, len(samples), samples[0], why_left_out(op, s)) for s, samples in texts.items())


def alike(case: Case) -> object:
    """Return what calls have in common if strategies that are right for one must be for the other: all but sizes."""
    call = case.rule.call
    operands = tuple((meta.dtype, tuple(size == 1 for size in meta.shape)) for meta in call.operands)
    return call.arguments, call.structure, operands


def telling(case: Case) -> bool:
    """Return whether results tell strategies apart; of one element, all reductions are the identity."""
    most = max((operand.numel() for operand in case.operands), default=0)
    return most > 1 and not all(right is None or not right.numel() for right in case.expected)


def left_out(case: Case, others: Iterable[Case] = (), hard: Iterable[Case] = ()) -> Found:
    """Return the assignments that the rule of `case` does not have.

    Args:
        others: its variants; one that is wrong in any of them is wrong.
        hard: more of them, which are made only if an assignment is right in all others.
    """
    first, *trials = (_trial(c) for c in (case, *others))
    known = {strategy.operands for count in TRIED_IN for strategy in case.rule.strategies(count)}
    ignored = first.ignored()
    right: list[Possible] = []
    wrong: set[tuple[Placement, ...]] = set()
    last: list[Trial] | None = None
    for operands in first.assignments():
        if any(_implied(operands, other, ignored) for other in (*known, *(p.operands for p in right))):
            continue
        possible = right_in_all([first, *trials], operands)
        if possible and any(p.trait == "partial" for p in operands):
            last = [_trial(c) for c in hard] if last is None else last
            possible = right_in_all(last, operands, possible)
        if possible:
            right.append(possible)
        else:
            wrong.add(operands)
    return Found(tuple(right), frozenset(wrong))


def _trial(case: Case) -> Trial:
    return Trial(case.rule.call, case.operands, case.expected, case.rule.shape_arguments)


def right_in_all(
    trials: Sequence[Trial], operands: tuple[Placement, ...], so_far: Possible | None = None
) -> Possible | None:
    """Return `operands` with its results, if right in a trial and in those of the same call on other numbers."""
    possible = so_far
    for trial in trials:
        possible = trial.right(operands, TRIED_IN, possible)
        if possible is None:
            return None
    return possible


def _implied(one: Sequence[Placement], other: Sequence[Placement], ignored: frozenset[int]) -> bool:
    """Return whether who may run an op on operands placed as `other` may do so as `one`, without sending anything.

    A replicated value is a partial maximum, too; and where the values of an operand do not matter, one placement of it
    stands for all.
    """
    return all(
        a == b or index in ignored or (a == R and b.op in REPEATABLE)
        for index, (a, b) in enumerate(zip(one, other, strict=True))
    )


def describe(sample: Sample) -> str:
    """Return the call of a sample as text: `(5x4xf64, [4xf64, none], 2) dim=1`."""
    arguments = " ".join(f"{name}={value}" for name, value in sorted(sample.arguments.items()))
    return f"({', '.join(map(_operand, sample.operands))}) {arguments}".strip()


def _operand(operand: Any) -> str:
    if isinstance(operand, list):
        return f"[{', '.join(map(_operand, operand))}]"
    if isinstance(operand, Tensor):
        return str(meta(operand))
    return "none" if operand is None else str(operand)


def _family(op: str, rules: RuleSet) -> str:
    return rules.records[op][0].file.rpartition("/")[2].removesuffix(".rules")
