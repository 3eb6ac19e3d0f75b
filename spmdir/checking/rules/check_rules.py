"""Check rules by running ops: distribute jobs to worker processes, and combine their reports."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from spmdir.checking.rules.pool import Death, RunJobs, pool
from spmdir.checking.rules.report import OpReport, RuleReport
from spmdir.checking.rules.worker_options import Options, Setup
from spmdir.core.arguments import CALLABLE, FLAG, INTEGER, PATH, TEXT, Kind, accepts, many
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.standard import parse_placement
from spmdir.plugins import extended_rules, load_plugins
from spmdir.rules import RuleSet

_NAMES = many(TEXT, 'names of ops such as ["aten.mm"]')

MAX_CAPTURED_CALLS = 8
"""The largest number of captured calls of an op that are checked. Calls of different kinds go first."""

CAPTURE_SECONDS = 120.0
"""The time limit for the samples of one OpInfo."""

FILTER_LIMIT = 40
"""If there are at most this number of ops, only OpInfos whose names share a word with one of them are run."""


@accepts(
    ops=_NAMES.optional,
    world_sizes=many(INTEGER, "numbers of ranks, at least 2, as in (2, 3, 4)"),
    samples=PATH.optional,
    placements=many(TEXT, 'texts such as ("Cyclic(0, 2)",)'),
    plugins=many(PATH, "paths of files, or names of installed plug-ins"),
    captured=FLAG,
    missing=FLAG,
    processes=Kind(lambda value: isinstance(value, int) and value > 0, "a positive integer").optional,
    timeout=Kind(lambda value: isinstance(value, (int, float)) and value > 0, "a positive number of seconds"),
    progress=CALLABLE.optional,
)
def check_rules(
    ops: Sequence[str] | None = None,
    *,
    world_sizes: Sequence[int] = (2, 3, 4),
    samples: str | Path | None = None,
    placements: Sequence[str] = (),
    plugins: Sequence[str | Path] = (),
    captured: bool = True,
    missing: bool = True,
    processes: int | None = None,
    timeout: float = 300.0,
    progress: Callable[[str], object] | None = None,
) -> RuleReport:
    """Run every strategy of rules on simulated ranks, and compare the results with those of one device.

    Args:
        ops: names such as "aten.mm"; None checks all ops that have a rule.
        world_sizes: the sizes of the mesh axis.
        samples: a Python file with a function `samples()` that returns additional `Sample`s of
            `spmdir.checking.rules.samples.sample`. The file may register ops.
        placements: texts of plug-in placements, such as "Cyclic(0, 2)". Only the strategies that these add are run.
        plugins: `.rules` files, whose rules replace the packaged rules of the same ops; `.py` files; and names of
            installed plug-ins.
        captured: whether to also check the aten calls of torch's OpInfo samples.
        missing: whether to search for missing strategies.
        processes: the number of worker processes; None for one for each core.
        timeout: the time limit of one op in seconds.
        progress: called with a line of text after each op.

    Returns:
        A report with `sound`, `ops`, `totals()`, `table()` and `json()`.

    Raises:
        SpmdirError: an op has no rule, a text is not a placement, or a file cannot be used.

    Example:
        >>> assert spmdir.testing.check_rules(["aten.mm"]).sound
    """
    rule_set = extended_rules(load_plugins(plugins))
    selected = _select_ops(ops, rule_set)
    if not world_sizes or any(not isinstance(count, int) or count < 2 for count in world_sizes):
        raise SpmdirError(f"world_sizes is {list(world_sizes)}; expected numbers of ranks, at least 2")
    samples_file = None if samples is None else os.path.abspath(samples)
    setup = Setup(samples_file, tuple(os.path.abspath(name) if os.path.exists(name) else str(name) for name in plugins))
    for text in placements:
        parse_placement(text)
    options = Options(tuple(world_sizes), missing, tuple(placements))
    report_progress = progress or (lambda text: None)
    with pool(setup, processes or os.cpu_count() or 1) as ask:
        if captured:
            report_progress("running torch's OpInfo samples")
        calls, notes = captured_calls(ask, selected) if captured else ({}, [])
        reports = _check_ops(ask, selected, calls, options, timeout, rule_set, report_progress)
    return RuleReport(tuple(reports), tuple(notes))


def _select_ops(ops: Sequence[str] | None, rules: RuleSet) -> list[str]:
    """Return the ops to check, each once; all ops with a rule if `ops` is None."""
    if ops is None:
        return list(rules.names)
    for name in ops:
        if name not in rules.names:
            raise rules.missing_rule_error(name)
    return list(dict.fromkeys(ops))


def captured_calls(ask: RunJobs, selected: Sequence[str] | None) -> tuple[Mapping[str, tuple[bytes, ...]], list[str]]:
    """Return op → pickled samples of its calls in OpInfos, and notes on failures.

    If few ops are selected, only OpInfos whose names have a word in common with one of them are run, to save time.

    Args:
        selected: the ops to capture; None for all.
    """
    (opinfos,) = ask([("opinfos",)], CAPTURE_SECONDS)
    if isinstance(opinfos, Death):
        return {}, [f"torch's OpInfo samples cannot be loaded: {opinfos}; checked the packaged samples alone"]
    opinfo_names, problem = opinfos
    notes = [problem] if problem else []
    calls_by_kind: dict[str, dict[str, list[bytes]]] = {}  # op → kind of its calls → pickled samples
    ops = None if selected is None else frozenset(selected)
    words = None if ops is None or len(ops) > FILTER_LIMIT else frozenset().union(*map(_words, ops))
    indices = [index for index, name in enumerate(opinfo_names) if words is None or _words(name) & words]
    answers = ask([("capture", index, ops) for index in indices], CAPTURE_SECONDS)
    for name, answer in zip((opinfo_names[index] for index in indices), answers, strict=True):
        if isinstance(answer, Death):
            notes.append(f"OpInfo {name}: {answer}")
            continue
        for op, kind, pickled in answer:
            calls_by_kind.setdefault(op, {}).setdefault(kind, []).append(pickled)
    return {op: tuple(_select_varied_calls(list(by_kind.values()))) for op, by_kind in calls_by_kind.items()}, notes


def _words(name: str) -> frozenset[str]:
    """Return the words of the name of an op, without those that most names have."""
    return frozenset(name.replace(".", "_").split("_")) - {"", "aten", "nn", "functional", "backward", "forward", "dim"}


def _select_varied_calls(groups: list[list[bytes]]) -> Iterator[bytes]:
    """Yield at most MAX_CAPTURED_CALLS calls: the first call of each kind, then the second of each kind, and so on.

    If there are many kinds, only evenly spaced ones are used.

    Args:
        groups: for each kind of call, its calls.
    """
    step = max(1, len(groups) // MAX_CAPTURED_CALLS)
    rounds = itertools.zip_longest(*groups[::step])
    calls = (call for calls_of_round in rounds for call in calls_of_round if call is not None)
    yield from itertools.islice(calls, MAX_CAPTURED_CALLS)


def _check_ops(
    ask: RunJobs,
    selected: Sequence[str],
    calls: Mapping[str, tuple[bytes, ...]],
    options: Options,
    timeout: float,
    rules: RuleSet,
    progress: Callable[[str], object],
) -> list[OpReport]:
    """Check ops in worker processes, and return their reports.

    Args:
        ask: runs jobs in the workers.
        calls: op → pickled samples of captured calls.
        timeout: the time limit of one op in seconds.
    """

    def jobs(names: Sequence[str], options: Options) -> list[Any]:
        """Return a job for each op, see `worker.Session.check`."""
        return [("check", op, calls.get(op, ()), options) for op in names]

    answers: dict[str, Any] = {}
    for number, (op, answer) in enumerate(zip(selected, ask(jobs(selected, options), timeout), strict=True), 1):
        answers[op] = answer
        progress(f"{number}/{len(selected)} {op}: {answer if isinstance(answer, Death) else answer.summary}")
    # An op may end its process during the search for missing strategies. Then it is checked again without the search.
    failed_ops = [
        op for op, answer in answers.items() if isinstance(answer, Death) and answer.stage.startswith("looking")
    ]
    without_search = attrs.evolve(options, missing=False)
    for op, answer in zip(failed_ops, ask(jobs(failed_ops, without_search), timeout), strict=True):
        if isinstance(answer, OpReport):
            note = f"the search for missing strategies did not finish: {answers[op]}"
            answer = attrs.evolve(answer, notes=(*answer.notes, note))
        answers[op] = answer
    families = {op: rules.records[op][0].file.rpartition("/")[2].removesuffix(".rules") for op in selected}
    return [
        OpReport(op, families[op], crash=str(answer)) if isinstance(answer, Death) else answer
        for op, answer in answers.items()
    ]
