"""Find the simplest type signature of an op that agrees with all its trials."""

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
    """Return the type signatures of an op: one, or one for each value of an argument that affects result types.

    If no signature agrees with all trials, the types of some results are not checked: their sources are ().
    """
    run_trials = [trial for trial in trials if trial.result_types and not trial.is_rejected]
    accepted_trials = [trial for trial in run_trials if trial.is_accepted]
    # Prefer a signature that also agrees with trials that ran on meta tensors only.
    for accepted in (run_trials, accepted_trials):
        signature = _fit_signature(op, trials, accepted, None)
        if all(signature.results):
            return [signature]
        for name in _switch_arguments(trials):
            lines = _signatures_by_value(op, trials, accepted, name)
            if all(all(line.results) for line in lines):
                return lines
    # No signature agrees with the accepted trials: keep the last one, with () for the results that do not fit.
    return [signature]


def _switch_arguments(trials: Sequence[TypeTrial]) -> list[str]:
    """Return the arguments whose values are Booleans or words. Result types may depend on them."""
    names = dict.fromkeys(name for trial in trials for name in trial.arguments)
    values_of_name = {name: [trial.arguments.get(name) for trial in trials] for name in names}
    return [
        name
        for name, values in values_of_name.items()
        if all(map(_is_switch, values)) and any(value is not None for value in values)
    ]


def _is_switch(value: Any) -> bool:
    """Return whether a value is a Boolean or a word, or is absent."""
    return value is None or isinstance(value, bool) or (isinstance(value, str) and value.isidentifier())


def _signatures_by_value(
    op: str, trials: Sequence[TypeTrial], accepted: Sequence[TypeTrial], name: str
) -> list[TypeSignature]:
    """Return a signature for each value of the argument `name`, fitted to the trials with this value."""

    def with_value(candidates: Sequence[TypeTrial], value: str) -> list[TypeTrial]:
        """Return the trials whose argument `name` has this value, as text."""
        return [trial for trial in candidates if argument_text(trial.arguments.get(name)) == value]

    values = dict.fromkeys(argument_text(trial.arguments.get(name)) for trial in trials)
    return [
        _fit_signature(op, with_value(trials, value), with_value(accepted, value), (name, value)) for value in values
    ]


def _fit_signature(
    op: str, trials: Sequence[TypeTrial], accepted: Sequence[TypeTrial], guard: tuple[str, str] | None
) -> TypeSignature:
    """Fit a signature of element types to the trials of an op.

    Args:
        accepted: the trials that define the types of results.
        guard: (argument, text of its value), if the signature holds only for this value.
    """
    rejected = [trial for trial in trials if trial.is_rejected]
    # Without accepted trials, assume one result.
    result_count = max((len(types) for trial in accepted for _, types in trial.result_types), default=1)
    dtype = dtype_argument(op)
    results = tuple(_find_sources(accepted, index, dtype) for index in range(result_count))
    equal = tuple(_equal_operands([trial for trial in trials if trial.is_accepted], rejected))
    allowed = tuple(_restricted_operands(trials, dtype))
    return TypeSignature(op, results, guard, allowed, equal)


def _operand_names(trials: Sequence[TypeTrial]) -> list[str]:
    """Return the names of the operands of trials, each once."""
    return list(dict.fromkeys(name for trial in trials for name in trial.operands))


def _restricted_operands(trials: Sequence[TypeTrial], dtype: str | None) -> Iterator[AllowedTypes]:
    """Yield the operands that accept only some element types, with these types.

    Args:
        dtype: the name of the argument that is an element type. With it, an operand may accept more types.
    """
    for name in _operand_names(trials):
        if types := _allowed_types(trials, name):
            yield AllowedTypes(name, types)
        elif dtype:
            without_dtype = [trial for trial in trials if trial.arguments.get(dtype) is None]
            if types := _allowed_types(without_dtype, name):
                yield AllowedTypes(name, types, unless=dtype)


def _allowed_types(trials: Sequence[TypeTrial], name: str) -> tuple[DType, ...]:
    """Return the element types that operand `name` may have; () if it may have all.

    Types that were not tried are allowed.
    """
    accepted_types = _types_of([trial for trial in trials if not trial.is_rejected], name)
    rejected_types = _types_of([trial for trial in trials if trial.is_rejected], name) - accepted_types
    if not rejected_types or not accepted_types:
        return ()
    return tuple(type_ for type_ in DTYPES.values() if type_ not in rejected_types)


def _types_of(trials: Sequence[TypeTrial], name: str) -> set[DType]:
    """Return the element types that operand `name` has in trials."""
    return {meta.dtype for trial in trials for meta in trial.operands.get(name, ())}


def _equal_operands(accepted: Sequence[TypeTrial], rejected: Sequence[TypeTrial]) -> Iterator[tuple[str, ...]]:
    """Yield the groups of operands that must have equal element types.

    Pairs with a common operand join to one group: (x, y) and (y, z) become (x, y, z). A group of one operand is a list
    of tensors whose types must be equal.
    """
    groups: list[list[str]] = []
    names = [name for name in _operand_names(rejected) if name not in STATISTICS]
    for name in names:
        if _must_be_equal(accepted, rejected, (name,)):
            groups.append([name])
    for left, right in itertools.combinations(names, 2):
        if _must_be_equal(accepted, rejected, (left, right)):
            merged = [group for group in groups if {left, right} & {*group}]
            groups = [group for group in groups if group not in merged]
            groups.append([name for name in names if name in {left, right}.union(*merged)])
    yield from map(tuple, groups)


def _must_be_equal(accepted: Sequence[TypeTrial], rejected: Sequence[TypeTrial], names: tuple[str, ...]) -> bool:
    """Return whether torch rejects different element types for these operands that it accepts if all are equal.

    In every accepted trial, the operands must have one type, and at least two types must occur in all. In some rejected
    trial, they must have different ones of these types.
    """

    def types(trial: TypeTrial) -> list[DType]:
        """Return the element types of the operands `names`."""
        return [meta.dtype for name in names for meta in trial.operands.get(name, ())]

    def has_operands(trial: TypeTrial) -> bool:
        """Return whether a trial has all these operands, and at least two tensors among them."""
        return all(trial.operands.get(name) for name in names) and len(types(trial)) > 1

    accepted_types = [types(trial) for trial in accepted if has_operands(trial)]
    rejected_types = [types(trial) for trial in rejected if has_operands(trial)]
    usable_types = {type_ for types_of_trial in accepted_types for type_ in types_of_trial}
    return (
        len(usable_types) > 1
        and all(len({*types_of_trial}) == 1 for types_of_trial in accepted_types)
        and any(len({*types_}) > 1 and usable_types.issuperset(types_) for types_ in rejected_types)
    )


def _find_sources(accepted: Sequence[TypeTrial], index: int, dtype: str | None) -> tuple[TypeSource, ...]:
    """Return the source of the element type of result `index`: one, or one for meta tensors and one for the CPU.

    Returns () if no source agrees with all trials.
    """
    pairs_of_device: dict[str, list[tuple[TypeTrial, DType | None]]] = {"meta": [], "cpu": []}
    for trial in accepted:
        for device, types in trial.result_types:
            if index < len(types) and types[index] is not None:
                pairs_of_device[device].append((trial, types[index]))
    # Prefer one source for both devices.
    both_devices = [*pairs_of_device["meta"], *pairs_of_device["cpu"]]
    for groups in ([both_devices], list(pairs_of_device.values())):
        sources = [_find_source(pairs, dtype) for pairs in groups if pairs]
        if sources and all(sources):
            return tuple(dict.fromkeys(source for source in sources if source))
    return ()


def _find_source(pairs: Pairs, dtype: str | None) -> TypeSource | None:
    """Return the simplest source that gives the right element type in all pairs; None if there is none.

    If all calls with the argument `dtype` return that type, the source names the argument. Operands then determine the
    type only in calls without it.

    Args:
        dtype: the name of the argument that is an element type, if there is one.
    """
    with_dtype = [(trial, type_) for trial, type_ in pairs if dtype and isinstance(trial.arguments.get(dtype), DType)]
    without_dtype = [(trial, type_) for trial, type_ in pairs if not dtype or trial.arguments.get(dtype) is None]
    follows_dtype = bool(with_dtype) and all(type_ == trial.arguments[dtype or ""] for trial, type_ in with_dtype)
    for source in _candidates(without_dtype or pairs):
        candidate = attrs.evolve(source, argument=dtype if follows_dtype else None)
        if all(_evaluate(candidate, trial) == type_ for trial, type_ in pairs):
            return candidate
    return None


def _evaluate(source: TypeSource, trial: TypeTrial) -> DType | None:
    """Return the element type that a source gives for a trial; None if it cannot be evaluated."""
    try:
        return source.evaluate(trial.operands, trial.arguments)
    except RuleError:
        return None


def _candidates(pairs: Pairs) -> Iterator[TypeSource]:
    """Yield the sources that could give the element types in `pairs`, the simplest and most likely ones first.

    For `add(x, y)`: a fixed type, if all results have one; the type of x; the type of y; the promoted type of both.
    """
    types = {type_ for _, type_ in pairs}
    trials = [trial for trial, _ in pairs]
    operands = list(dict.fromkeys(name for trial in trials for name, metas in trial.operands.items() if metas))
    numbers = []  # the arguments that are numbers of several types
    for name in dict.fromkeys(name for trial in trials for name in trial.arguments):
        argument_types = {type(trial.arguments.get(name)) for trial in trials}
        if name not in operands and len(argument_types & {bool, int, float, complex}) > 1:
            numbers.append(name)
    if len(types) == 1:
        yield TypeSource(fixed=types.pop())
    affecting = [name for name in (*operands, *numbers) if _affects_result(pairs, name)]
    promoted_names: list[tuple[str, ...]] = [(name,) for name in (affecting or operands or numbers)]
    if len(affecting) > 1:
        promoted_names.append(tuple(affecting))
    promoted_names += [(name,) for name in operands]
    if len(operands) <= 6:  # the number of pairs grows quadratically
        promoted_names += itertools.combinations(operands, 2)
    promoted_names += [tuple(operands), (*operands, *numbers)]
    for names, map_name in itertools.product(dict.fromkeys(promoted_names), MAPS):
        if names:
            yield TypeSource(names, map_name)
    # For an op without operands, try torch's default type last.
    if not types and not operands:
        yield TypeSource(fixed=dt.F32)


def _affects_result(pairs: Pairs, name: str) -> bool:
    """Return whether the element type of the result changes if only the type of operand or argument `name` does."""
    groups: dict[Any, set[DType | None]] = {}
    for trial, type_ in pairs:
        # Trials with equal keys differ only in the types of `name`.
        other_operands = tuple((other, metas) for other, metas in trial.operands.items() if other != name)
        other_arguments = str([(other, value) for other, value in sorted(trial.arguments.items()) if other != name])
        ranks = tuple(meta.rank for meta in trial.operands.get(name, ()))
        groups.setdefault((other_operands, other_arguments, ranks), set()).add(type_)
    return any(len(types) > 1 for types in groups.values())


def violations(lines: Sequence[TypeSignature], trials: Sequence[TypeTrial]) -> tuple[list[tuple[TypeTrial, str]], int]:
    """Compare type signatures with trials, without the trials to which no signature applies.

    Returns: a list of (trial, message) for the trials that torch accepts but `lines` reject, and the number of trials
        that torch rejects but `lines` accept.
    """
    wrong, lenient_number = [], 0
    for trial in trials:
        line = next((line for line in lines if line.fits(trial.arguments)), None)
        if line is None:
            continue
        message = ""
        try:
            line.check_operands(trial.operands, trial.arguments)
            types_of_devices = [types for _, types in trial.result_types]
            if trial.is_rejected:
                types_of_devices = [(None,) * len(line.results)]  # torch returns no results
            for result_types in types_of_devices:
                line.check_results(trial.operands, trial.arguments, result_types)
        except RuleError as error:
            message = error.message
        if message and trial.is_accepted:
            wrong.append((trial, message))
        if trial.is_rejected and not message:
            lenient_number += 1
    return wrong, lenient_number
