"""Find the shortest line of the table of element types that agrees with all trials of an op."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from spmdir.checking.rules.dtype_trials import STATISTICS, TypeTrial, dtype_argument
from spmdir.core import dtype as dt
from spmdir.core.dtype import DTYPES, DType
from spmdir.core.errors import RuleError
from spmdir.rules.element_types import MAPS, AllowedTypes, TypeSignature, TypeSource, argument_text

Pairs = Sequence[tuple[TypeTrial, DType | None]]
"""Trials, each with the element type of one result."""


def fit(op: str, trials: Sequence[TypeTrial]) -> list[TypeSignature]:
    """Return the lines for an op: one, or one for each value of an argument on which the result types depend."""
    run_trials = [trial for trial in trials if trial.given and not trial.is_rejected]
    for accepted in (run_trials, [trial for trial in run_trials if trial.is_accepted]):
        signature = _line(op, trials, accepted, None)
        if all(signature.results):
            return [signature]
        for name in _switches(trials):
            lines = _lines_by(op, trials, accepted, name)
            if all(all(line.results) for line in lines):
                return lines
    return [signature]


def _switches(trials: Sequence[TypeTrial]) -> list[str]:
    """Return the arguments whose values are Booleans or words."""
    names = dict.fromkeys(name for trial in trials for name in trial.arguments)
    values = {name: [trial.arguments.get(name) for trial in trials] for name in names}
    return [name for name, given in values.items() if all(map(_is_switch, given)) and any(v is not None for v in given)]


def _is_switch(value: Any) -> bool:
    return value is None or isinstance(value, bool) or (isinstance(value, str) and value.isidentifier())


def _lines_by(op: str, trials: Sequence[TypeTrial], accepted: Sequence[TypeTrial], name: str) -> list[TypeSignature]:
    def having(listed: Sequence[TypeTrial], value: str) -> list[TypeTrial]:
        return [trial for trial in listed if argument_text(trial.arguments.get(name)) == value]

    values = dict.fromkeys(argument_text(trial.arguments.get(name)) for trial in trials)
    return [_line(op, having(trials, value), having(accepted, value), (name, value)) for value in values]


def _line(
    op: str, trials: Sequence[TypeTrial], accepted: Sequence[TypeTrial], guard: tuple[str, str] | None
) -> TypeSignature:
    rejected = [trial for trial in trials if trial.is_rejected]
    width = max((len(given) for trial in accepted for _, given in trial.given), default=1)
    dtype = dtype_argument(op)
    results = tuple(_sources(accepted, index, dtype) for index in range(width))
    same = tuple(_same([trial for trial in trials if trial.is_accepted], rejected))
    allowed = tuple(_allowed(trials, dtype))
    return TypeSignature(op, results, guard, allowed, same)


def _names(trials: Sequence[TypeTrial]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.operands))


def _allowed(trials: Sequence[TypeTrial], dtype: str | None) -> Iterator[AllowedTypes]:
    """Yield the operands that allow only some element types, with these types."""
    for name in _names(trials):
        if limited := _limited(trials, name):
            yield AllowedTypes(name, limited)
        elif dtype and (limited := _limited([t for t in trials if t.arguments.get(dtype) is None], name)):
            yield AllowedTypes(name, limited, unless=dtype)


def _limited(trials: Sequence[TypeTrial], name: str) -> tuple[DType, ...]:
    """Return the element types that operand `name` may have; () if all are allowed."""
    seen = _of([trial for trial in trials if not trial.is_rejected], name)
    refused = _of([trial for trial in trials if trial.is_rejected], name) - seen
    return tuple(type_ for type_ in DTYPES.values() if type_ not in refused) if refused and seen else ()


def _of(trials: Sequence[TypeTrial], name: str) -> set[DType]:
    return {meta.dtype for trial in trials for meta in trial.operands.get(name, ())}


def _same(accepted: Sequence[TypeTrial], rejected: Sequence[TypeTrial]) -> Iterator[tuple[str, ...]]:
    """Yield the groups of operands that must have equal element types."""
    groups: list[list[str]] = []
    names = [name for name in _names(rejected) if name not in STATISTICS]
    for name in names:
        if _agree(accepted, rejected, (name,)):
            groups.append([name])
    for left, right in itertools.combinations(names, 2):
        if _agree(accepted, rejected, (left, right)):
            joined = [group for group in groups if {left, right} & {*group}]
            groups = [group for group in groups if group not in joined]
            groups.append([n for n in names if n in {left, right}.union(*joined)])
    yield from map(tuple, groups)


def _agree(accepted: Sequence[TypeTrial], rejected: Sequence[TypeTrial], names: tuple[str, ...]) -> bool:
    def types(trial: TypeTrial) -> list[DType]:
        return [meta.dtype for name in names for meta in trial.operands.get(name, ())]

    def is_whole(trial: TypeTrial) -> bool:
        return all(trial.operands.get(name) for name in names) and len(types(trial)) > 1

    seen = [types(trial) for trial in accepted if is_whole(trial)]
    refused = [types(trial) for trial in rejected if is_whole(trial)]
    both = {type_ for types_of_trial in seen for type_ in types_of_trial}
    return (
        len(both) > 1
        and all(len({*types_of_trial}) == 1 for types_of_trial in seen)
        and any(len({*types_of_trial}) > 1 and both.issuperset(types_of_trial) for types_of_trial in refused)
    )


def _sources(accepted: Sequence[TypeTrial], index: int, dtype: str | None) -> tuple[TypeSource, ...]:
    """Return the source of the element type of result `index`: one, or one on meta tensors and one on the CPU."""
    by_device = {
        device: [(t, types[index]) for t in accepted for on, types in t.given if on == device and types[index:]]
        for device in ("meta", "cpu")
    }
    pairs_of_devices = [[(t, type_) for t, type_ in pairs if type_] for pairs in by_device.values()]
    for groups in ([[*pairs_of_devices[0], *pairs_of_devices[1]]], pairs_of_devices):
        sources = [_source(pairs, dtype) for pairs in groups if pairs]
        if sources and all(sources):
            return tuple(dict.fromkeys(source for source in sources if source))
    return ()


def _source(pairs: Pairs, dtype: str | None) -> TypeSource | None:
    """Return the simplest source that gives the right element type in all pairs; None if there is none.

    Args:
        dtype: the name of the argument that is an element type, if there is one.
    """
    with_dtype = [(trial, type_) for trial, type_ in pairs if dtype and isinstance(trial.arguments.get(dtype), DType)]
    without_dtype = [(trial, type_) for trial, type_ in pairs if not dtype or trial.arguments.get(dtype) is None]
    counts = bool(with_dtype) and all(type_ == trial.arguments[dtype or ""] for trial, type_ in with_dtype)
    for source in _candidates(without_dtype or pairs):
        candidate = attrs.evolve(source, argument=dtype if counts else None)
        if all(_evaluate(candidate, trial) == type_ for trial, type_ in pairs):
            return candidate
    return None


def _evaluate(source: TypeSource, trial: TypeTrial) -> DType | None:
    try:
        return source.evaluate(trial.operands, trial.arguments)
    except RuleError:
        return None


def _candidates(pairs: Pairs) -> Iterator[TypeSource]:
    types = {type_ for _, type_ in pairs}
    operands = list(dict.fromkeys(name for t, _ in pairs for name, metas in t.operands.items() if metas))
    numbers = [
        name
        for name in dict.fromkeys(name for t, _ in pairs for name in t.arguments)
        if name not in operands
        and len({type(t.arguments.get(name)) for t, _ in pairs} & {bool, int, float, complex}) > 1
    ]
    if len(types) == 1:
        yield TypeSource(fixed=types.pop())
    matter = [name for name in (*operands, *numbers) if _matters(pairs, name)]
    sets: list[tuple[str, ...]] = [(name,) for name in (matter or operands or numbers)]
    sets += [tuple(matter)] if len(matter) > 1 else []
    sets += [(name,) for name in operands]
    sets += list(itertools.combinations(operands, 2)) if len(operands) <= 6 else []
    sets += [tuple(operands), (*operands, *numbers)]
    for names, map_ in itertools.product(dict.fromkeys(sets), MAPS):
        if names:
            yield TypeSource(names, map_)
    if not types and not operands:
        yield TypeSource(fixed=dt.F32)


def _matters(pairs: Pairs, name: str) -> bool:
    """Return whether the element type of the result depends on that of `name` alone, with all others equal."""
    groups: dict[Any, set[DType | None]] = {}
    for trial, type_ in pairs:
        other_operands = tuple((n, metas) for n, metas in trial.operands.items() if n != name)
        arguments = str([(n, value) for n, value in sorted(trial.arguments.items()) if n != name])
        ranks = tuple(meta.rank for meta in trial.operands.get(name, ()))
        groups.setdefault((other_operands, arguments, ranks), set()).add(type_)
    return any(len(types) > 1 for types in groups.values())


def violations(lines: Sequence[TypeSignature], trials: Sequence[TypeTrial]) -> tuple[list[tuple[TypeTrial, str]], int]:
    """Return the trials that torch accepts but the lines reject, and the number of those the other way round."""
    wrong, lenient = [], 0
    for trial in trials:
        line = next((line for line in lines if line.fits(trial.arguments)), None)
        if line is None:
            continue
        message = ""
        try:
            line.check_operands(trial.operands, trial.arguments)
            for _, given in trial.given if not trial.is_rejected else (("", (None,) * len(line.results)),):
                line.check_results(trial.operands, trial.arguments, given)
        except RuleError as error:
            message = error.message
        if message and trial.is_accepted:
            wrong.append((trial, message))
        lenient += trial.is_rejected and not message
    return wrong, lenient
