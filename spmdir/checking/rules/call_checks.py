"""Check one op: run the strategies of its rule on samples and their variants, and find missing strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
from torch import Tensor

from spmdir.checking.rules.number_variants import number_variants
from spmdir.checking.rules.reasons import why_finite, why_left_out, why_numbers_differ, why_undetermined
from spmdir.checking.rules.report import Fault, MissingStrategy, OpReport
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.sound_assignments import FAILURES, AssignmentTrial, SoundAssignment
from spmdir.checking.rules.soundness import Case, Verdict, axis_verdicts, judge, meta, prepare
from spmdir.checking.rules.text_samples import runs_of_texts
from spmdir.checking.rules.values import hard_variants, special_variants
from spmdir.checking.rules.worker_options import Options
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Placement, R, parse_placement
from spmdir.rules import RuleSet
from spmdir.rules.language.syntax_tree import TextStrategy

RANKS_OF_SEARCH = (2, 3)
"""The numbers of ranks in the search for missing strategies."""

REPEATABLE = ("max", "min", "any", "all")
"""The reductions of equal values that return the same value."""


@attrs.frozen
class TriedSample:
    """A sample with its text, its case, and the cases of its variants."""

    text: str
    sample: Sample
    case: Case
    variants: list[Case]


@attrs.frozen
class SearchResult:
    """The result of the search in one sample: the sound assignments, and the operand placements of unsound ones."""

    sound: tuple[SoundAssignment, ...]
    unsound: frozenset[tuple[Placement, ...]]


def check_op(
    op: str, samples: Sequence[Sample], rules: RuleSet, options: Options, progress: Callable[[str], None]
) -> OpReport:
    """Check one op: run its strategies on samples, their variants and other numbers, and search for missing strategies.

    A strategy is sound if no run of it differs from one device. With plug-in placements in `options`, only the
    strategies that these add are run, and nothing is searched.

    Args:
        samples: calls of the op. A sample whose op fails is left out, with a note.
        progress: called with a description of each step, before it runs. If the worker process crashes, the report
            contains the last description.
    """
    cases: list[TriedSample] = []
    notes: list[str] = []
    faults: list[Fault] = []
    is_sound: dict[tuple[int, str], bool] = {}  # (index in `cases`, strategy) → whether all its runs were sound
    run_texts: set[TextStrategy] = set()
    plugins = tuple(map(parse_placement, options.placements))

    def record(number: int, name: str, verdict: Verdict) -> None:
        """Record the verdict on a strategy in `cases[number]`, or in its variant `name` if that is not empty."""
        if not verdict.is_run:
            return
        run_texts.update(verdict.texts)
        key = number, verdict.strategy
        is_sound[key] = is_sound.get(key, True) and verdict.fault is None
        if verdict.fault is not None:
            sample_text = f"{cases[number].text} with {name}" if name else cases[number].text
            faults.append(Fault(sample_text, verdict.strategy, verdict.mesh, verdict.fault))

    for sample in samples:
        text = describe(sample)
        progress(f"preparing {text}")
        case = _prepare_or_note(sample, rules, text, notes)
        if case is None:
            continue
        named_cases = [("", case), *variants(sample, case, rules)]
        number = len(cases)
        cases.append(TriedSample(text, sample, case, [variant for name, variant in named_cases if name]))
        for name, variant in named_cases:
            progress(f"running {text} with {name}" if name else f"running {text}")
            for verdict in axis_verdicts(variant, options.counts, plugins):
                record(number, name, verdict)
        progress(f"running {text} with other numbers")
        if not plugins:
            for name, verdict in number_verdicts(sample, case, rules):
                record(number, name, verdict)
    # Strategies of plug-ins as text are also run on calls that are derived from the samples.
    texts = runs_of_texts(plugins, samples, rules, options.counts) if plugins else {}
    for runs in texts.values():
        for run in runs:
            if run.is_derived:
                text = describe(run.sample)
                progress(f"running {text}")
                cases.append(TriedSample(text, run.sample, run.case, []))
                record(len(cases) - 1, "", judge(run.case, [("x", run.strategy)], Mesh({"x": run.count})))
    if reason := why_undetermined(op):
        notes.append(f"compared only in shape: {reason}")
    if reason := why_finite(op):
        notes.append(f"not run on NaN and infinities: {reason}")
    unchecked: list[str] = []
    # `texts` also contains strategies for which no call was found.
    for strategy in texts or rules.text_strategies(op):
        if strategy in run_texts:
            continue
        if reason := _why_unchecked(strategy, rules, plugins):
            notes.append(f"not checked: {strategy}: {reason}")
        else:
            unchecked.append(str(strategy))
    missing = _find_missing_strategies(op, cases, rules, progress) if options.missing and not plugins else ()
    sound_count = sum(is_sound.values())
    return OpReport(
        op,
        _family(op, rules),
        samples=len(cases),
        sound=sound_count,
        faulty=len(is_sound) - sound_count,
        unsound=tuple(faults),
        missing=missing,
        notes=tuple(dict.fromkeys(notes)),
        unchecked=tuple(unchecked),
        reason=rules.records[op][0].unchecked,
    )


def _why_unchecked(text: TextStrategy, rules: RuleSet, plugins: Sequence[Placement]) -> str | None:
    """Return the reason why a strategy cannot be checked: from its class, or from the comment before it; else None."""
    declared = (type(placement).unchecked.get(text.op) for placement in plugins)
    records = (record for record in rules.declared.get(text.op, ()) if record.line == text.location.line)
    return next(filter(None, (*declared, *(record.unchecked for record in records))), None)


def _prepare_or_note(sample: Sample, rules: RuleSet, text: str, notes: list[str]) -> Case | None:
    """Return the prepared sample; if its op fails, add a note that begins with `text` to `notes`, and return None."""
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
    """Yield (name, case) of the sample with NaN or infinities among its elements, if the op accepts them."""
    if all(result is None for result in case.expected) or why_finite(sample.op):
        return
    for name, variant in special_variants(sample):
        yield from ((name, prepared) for prepared in _prepared([variant], rules))


def _prepared(samples: Iterable[Sample], rules: RuleSet) -> Iterator[Case]:
    """Yield the prepared samples whose ops do not fail."""
    for sample in samples:
        try:
            yield prepare(sample, rules)
        except (SpmdirError, *FAILURES):
            continue


def number_verdicts(sample: Sample, case: Case, rules: RuleSet) -> Iterator[tuple[str, Verdict]]:
    """Yield (`alpha=inf`, verdict) for the strategies of the sample with another number, if the op accepts it.

    Two ranks suffice. Ops without comparable results, and differences that `reasons.toml` allows, are left out.
    """
    if all(result is None for result in case.expected) or why_finite(sample.op):
        return
    for name, variant in number_variants(sample):
        try:
            prepared = attrs.evolve(prepare(variant, rules), finite=True)
        except (SpmdirError, *FAILURES):
            continue
        verdicts = axis_verdicts(prepared, (2,))
        for verdict in verdicts:
            if not why_numbers_differ(sample.op, verdict.strategy):
                yield name, verdict


def _find_missing_strategies(
    op: str, cases: Sequence[TriedSample], rules: RuleSet, say: Callable[[str], None]
) -> tuple[MissingStrategy, ...]:
    """Return strategies that are sound for samples of the op, but that its rule lacks.

    A strategy counts if it is sound in all samples whose calls differ only in sizes. If `S(0) → S(0)` is sound for
    `op(f(4, 4))`, but not for `op(f(5, 4))`, it is not missing: it was right by chance.

    Args:
        say: called with a description of each step.
    """
    searches: list[tuple[TriedSample, SearchResult]] = []
    for tried in cases:
        if not has_distinct_results(tried.case):
            continue
        say(f"looking for missing strategies of {tried.text}")
        hard_cases = () if why_finite(op) else _prepared(hard_variants(tried.sample), rules)
        searches.append((tried, find_missing(tried.case, tried.variants, hard_cases)))
    # (key of equal calls, operand placements) → assignment that is sound in all samples of the key; None if there is
    # a sample in which it is not.
    sound_in_all: dict[object, SoundAssignment | None] = {}
    for tried, result in searches:
        key = key_of_equal_calls(tried.case)
        for operands in result.unsound:
            sound_in_all[key, operands] = None
        for assignment in result.sound:
            earlier = sound_in_all.get((key, assignment.operands), assignment)
            sound_in_all[key, assignment.operands] = None if earlier is None else earlier.intersect(assignment)
    samples_of_strategy: dict[str, list[str]] = {}
    for tried, result in searches:
        for assignment in result.sound:
            common = sound_in_all[key_of_equal_calls(tried.case), assignment.operands]
            if common is not None:
                samples_of_strategy.setdefault(str(common), []).append(tried.text)
    return tuple(
        MissingStrategy(strategy, len(samples), samples[0], why_left_out(op, strategy))
        for strategy, samples in samples_of_strategy.items()
    )


def key_of_equal_calls(case: Case) -> object:
    """Return a key of calls that differ only in sizes. A missing strategy must be sound for all calls with its key."""
    call = case.rule.call
    operands = tuple((meta.dtype, tuple(size == 1 for size in meta.shape)) for meta in call.operands)
    return call.arguments, call.structure, operands


def has_distinct_results(case: Case) -> bool:
    """Return whether the results distinguish strategies. With one element, all reductions are the identity."""
    largest = max((operand.numel() for operand in case.operands), default=0)
    return largest > 1 and not all(result is None or not result.numel() for result in case.expected)


def find_missing(case: Case, variants: Iterable[Case] = (), hard_cases: Iterable[Case] = ()) -> SearchResult:
    """Search for sound assignments that the rule of `case` does not have.

    Args:
        variants: the variants of the case. An assignment must be sound in all of them.
        hard_cases: more variants, which are only evaluated for an assignment that is sound in all others.
    """
    main_trial, *trials = map(_trial, (case, *variants))
    known_strategies = {strategy.operands for count in RANKS_OF_SEARCH for strategy in case.rule.strategies(count)}
    ignored = main_trial.ignored_operands()
    sound: list[SoundAssignment] = []
    unsound: set[tuple[Placement, ...]] = set()
    hard_trials: list[AssignmentTrial] | None = None
    for operands in main_trial.assignments():
        known_operands = (*known_strategies, *(assignment.operands for assignment in sound))
        if any(_is_implied(operands, known, ignored) for known in known_operands):
            continue
        assignment = check_in_all_trials([main_trial, *trials], operands)
        if assignment and any(placement.trait == "partial" for placement in operands):
            if hard_trials is None:
                hard_trials = list(map(_trial, hard_cases))
            assignment = check_in_all_trials(hard_trials, operands, assignment)
        if assignment:
            sound.append(assignment)
        else:
            unsound.add(operands)
    return SearchResult(tuple(sound), frozenset(unsound))


def _trial(case: Case) -> AssignmentTrial:
    """Return the trial of assignments for the call of a case."""
    return AssignmentTrial(case.rule.call, case.operands, case.expected, case.rule.shape_arguments)


def check_in_all_trials(
    trials: Sequence[AssignmentTrial], operands: tuple[Placement, ...], so_far: SoundAssignment | None = None
) -> SoundAssignment | None:
    """Return the assignment with its result placements if it is sound in all trials, else None.

    Args:
        operands: the placement of each operand.
        so_far: the assignment from earlier trials. Only its placements of results are considered.
    """
    assignment = so_far
    for trial in trials:
        assignment = trial.check_assignment(operands, RANKS_OF_SEARCH, assignment)
        if assignment is None:
            return None
    return assignment


def _is_implied(operands: Sequence[Placement], implying: Sequence[Placement], ignored: frozenset[int]) -> bool:
    """Return whether a strategy for the placements `implying` also accepts `operands` without communication.

    A replicated value is also a partial maximum. The placement of an ignored operand does not matter.
    """
    for index, (placement, implying_placement) in enumerate(zip(operands, implying, strict=True)):
        is_repeated = placement == R and implying_placement.op in REPEATABLE
        if placement != implying_placement and index not in ignored and not is_repeated:
            return False
    return True


def describe(sample: Sample) -> str:
    """Return the call of a sample as text: `(5x4xf64, [4xf64, none], 2) dim=1`."""
    arguments = " ".join(f"{name}={value}" for name, value in sorted(sample.arguments.items()))
    return f"({', '.join(map(_operand, sample.operands))}) {arguments}".strip()


def _operand(operand: Any) -> str:
    """Return an operand as text for messages."""
    if isinstance(operand, list):
        return f"[{', '.join(map(_operand, operand))}]"
    if isinstance(operand, Tensor):
        return str(meta(operand))
    return "none" if operand is None else str(operand)


def _family(op: str, rules: RuleSet) -> str:
    """Return the name of the rules file that contains the rule of an op."""
    return rules.records[op][0].file.rpartition("/")[2].removesuffix(".rules")
