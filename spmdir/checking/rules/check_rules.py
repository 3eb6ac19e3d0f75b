"""Checks rules by running the ops: plans the jobs, hands them to worker processes, puts their reports together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from spmdir.checking.rules.jobs import Options, Setup
from spmdir.checking.rules.pool import Ask, Death, pool
from spmdir.checking.rules.report import OpReport, RuleReport
from spmdir.core.arguments import CALLABLE, FLAG, INTEGER, PATH, TEXT, Kind, accepts, many
from spmdir.core.errors import RuleError, SpmdirError, did_you_mean
from spmdir.core.placement.standard import parse_placement
from spmdir.plugins import extended_rules, load_plugins
from spmdir.rules import RuleSet

_NAMES = many(TEXT, 'names of ops such as ["aten.mm"]')

SAMPLES_OF_AN_OP = 8
"""How many captured calls of an op are checked, of different kinds first."""

CAPTURE_SECONDS = 120.0

SOME_OPS = 40
"""Up to so many ops, only the OpInfos that share a word of their names with one of the ops are run."""


@accepts(
    ops=_NAMES.optional,
    world_sizes=many(INTEGER, "numbers of ranks from 2 on, as in (2, 3, 4)"),
    samples=PATH.optional,
    placements=many(TEXT, 'texts such as ("Cyclic(0, 2)",)'),
    plugins=many(PATH, "paths of files, or names of installed plug-ins"),
    captured=FLAG,
    missing=FLAG,
    processes=Kind(lambda value: isinstance(value, int) and value > 0, "a number from 1 on").optional,
    timeout=Kind(lambda value: isinstance(value, (int, float)) and value > 0, "seconds, more than 0"),
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
    """Run every strategy that rules give, on simulated ranks, and compare with the op on one device.

    Args:
        ops: names such as "aten.mm"; None checks all ops that have a rule.
        world_sizes: the numbers of ranks of the one mesh axis.
        samples: a Python file with a function `samples()` that lists further `Sample`s of
            spmdir.checking.rules.samples.sample; it may register ops.
        placements: texts of plug-in placements, such as "Cyclic(0, 2)"; the strategies that these add are run, and no
            others.
        plugins: `.rules` files, whose rules replace the packaged ones of the same ops, `.py` files, and the names of
            installed plug-ins.
        captured: whether the aten calls of torch's OpInfo samples are checked too.
        missing: whether right strategies that rules leave out are looked for.
        processes: worker processes; None is one a core.
        timeout: seconds for one op.
        progress: called with a line of text on each op that is done.

    Returns:
        A report with `sound`, `ops`, `totals()`, `table()` and `json()`.

    Raises:
        SpmdirError: an op has no rule, a text is not a placement, or a file cannot be used.

    Example:
        >>> assert spmdir.testing.check_rules(["aten.mm"]).sound
    """
    rule_set = extended_rules(load_plugins(plugins))
    wanted = _wanted(ops, rule_set)
    if not world_sizes or any(not isinstance(n, int) or n < 2 for n in world_sizes):
        raise SpmdirError(f"world_sizes is {list(world_sizes)}; expected numbers of ranks from 2 on")
    own = None if samples is None else os.path.abspath(samples)
    setup = Setup(own, tuple(os.path.abspath(name) if os.path.exists(name) else str(name) for name in plugins))
    for text in placements:
        parse_placement(text)
    options = Options(tuple(world_sizes), missing, tuple(placements))
    show = progress or str
    with pool(setup, processes or os.cpu_count() or 1) as ask:
        if captured:
            show("running torch's OpInfo samples")
        calls, notes = captured_calls(ask, wanted) if captured else ({}, [])
        reports = _checked(ask, wanted, calls, options, timeout, rule_set, show)
    return RuleReport(tuple(reports), tuple(notes))


def _wanted(ops: Sequence[str] | None, rules: RuleSet) -> list[str]:
    if ops is None:
        return list(rules.names)
    for name in ops:
        if name not in rules.names:
            near = did_you_mean(name, rules.names)
            if not near and not name.startswith(("aten.", "prims.")):
                near = "; load the plug-in that has it, as by --load-plugin"
            raise RuleError(f"no rule for {name}{near}")
    return list(dict.fromkeys(ops))


def captured_calls(ask: Ask, wanted: Sequence[str] | None) -> tuple[Mapping[str, tuple[bytes, ...]], list[str]]:
    """Return op → pickled samples of the calls that OpInfos make, of all ops if `wanted` is None; and what failed."""
    (listed,) = ask([("opinfos",)], CAPTURE_SECONDS)
    if isinstance(listed, Death):
        return {}, [f"torch's OpInfo samples cannot be loaded: {listed}; checked the packaged samples alone"]
    names, problem = listed
    notes = [problem] if problem else []
    kinds: dict[str, dict[str, list[bytes]]] = {}
    ops = None if wanted is None else frozenset(wanted)
    words = None if ops is None or len(ops) > SOME_OPS else frozenset().union(*map(_words, ops))
    chosen = [index for index, name in enumerate(names) if words is None or _words(name) & words]
    answers = ask([("capture", index, ops) for index in chosen], CAPTURE_SECONDS)
    for name, answer in zip((names[index] for index in chosen), answers, strict=True):
        if isinstance(answer, Death):
            notes.append(f"OpInfo {name}: {answer}")
            continue
        for op, kind, data in answer:
            kinds.setdefault(op, {}).setdefault(kind, []).append(data)
    return {op: tuple(_varied(list(by_kind.values()))) for op, by_kind in kinds.items()}, notes


def _words(name: str) -> frozenset[str]:
    return frozenset(name.replace(".", "_").split("_")) - {"", "aten", "nn", "functional", "backward", "forward", "dim"}


def _varied(groups: list[list[bytes]]) -> Iterator[bytes]:
    """Yield the first of each group, then the second, and so on, up to SAMPLES_OF_AN_OP; groups thinned evenly."""
    step = max(1, len(groups) // SAMPLES_OF_AN_OP)
    groups = groups[::step]
    ordered = [group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group)]
    yield from ordered[:SAMPLES_OF_AN_OP]


def _checked(
    ask: Ask,
    wanted: Sequence[str],
    calls: Mapping[str, tuple[bytes, ...]],
    options: Options,
    timeout: float,
    rules: RuleSet,
    progress: Callable[[str], object],
) -> list[OpReport]:
    def jobs(names: Sequence[str], how: Options) -> list[Any]:
        return [("check", op, calls.get(op, ()), how) for op in names]

    answers: dict[str, Any] = {}
    for number, (op, answer) in enumerate(zip(wanted, ask(jobs(wanted, options), timeout), strict=True), 1):
        answers[op] = answer
        progress(f"{number}/{len(wanted)} {op}: {answer if isinstance(answer, Death) else answer.summary}")
    # Ops may die of operands that no strategy gives them; then their strategies are judged without such a search.
    died = [op for op, answer in answers.items() if isinstance(answer, Death) and answer.stage.startswith("looking")]
    again = attrs.evolve(options, missing=False)
    for op, answer in zip(died, ask(jobs(died, again), timeout), strict=True):
        if isinstance(answer, OpReport):
            note = f"not all missing strategies found: {answers[op]}"
            answer = attrs.evolve(answer, notes=(*answer.notes, note))
        answers[op] = answer
    families = {op: rules.records[op][0].file.rpartition("/")[2].removesuffix(".rules") for op in wanted}
    return [
        OpReport(op, families[op], crash=str(answer)) if isinstance(answer, Death) else answer
        for op, answer in answers.items()
    ]
