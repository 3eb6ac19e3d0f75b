"""Try every law on placements, and say which is broken on which example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import attrs
import torch

from spmdir.checking.placements.instances import drawn_instances, instances
from spmdir.checking.placements.law import Example, Law, Outcome
from spmdir.checking.placements.layouts import layouts
from spmdir.checking.placements.table import LAWS
from spmdir.checking.placements.time_limit import TooLong, time_limit
from spmdir.checking.placements.verdict import PlacementReport, Unchecked, Verdict, unchecked_of
from spmdir.core.errors import Location, SpmdirError, UnsupportedError, did_you_mean, require_type
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.progress import say
from spmdir.plugins import line_in, load_plugin

_EXAMPLES = "law 'examples' (its `examples` are texts of it, or it takes usual values) is broken"

FEW = 12
"""Examples of a law that are tried quickly."""

NAMED = 8
"""Parts of laws that an error names as not checked."""

SECONDS = 10.0
"""Time for one example; all examples together have a tenth of it each, beside that of one."""

Answer = TypeVar("Answer")


@attrs.frozen
class Effort:
    """How much is tried.

    Attributes:
        quick: try `few` examples of each law, and no drawn values of fields.
        laws: names of the laws to try; all if empty.
        seconds: time that one example may take.
        few: how many examples of each law are tried quickly, at least 2, spread evenly over all; and one of each
            subject of the law.
    """

    quick: bool = False
    laws: tuple[str, ...] = ()
    seconds: float = SECONDS
    few: int = FEW

    def __attrs_post_init__(self) -> None:
        known = [law.name for law in LAWS]
        for name in self.laws:
            if name not in known:
                raise SpmdirError(f"there is no law '{name}'{did_you_mean(name, known)}; see --list-laws")

    @property
    def chosen(self) -> Sequence[Law]:
        return [law for law in LAWS if (law.name in self.laws if self.laws else not (self.quick and law.is_slow))]

    def of(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return the examples to try, then those to try in place of the ones that do not meet the law."""
        if not self.quick or len(examples) <= self.few:
            return examples
        spread = [examples[at * (len(examples) - 1) // (self.few - 1)] for at in range(self.few)]
        firsts = {example.subject: example for example in reversed(examples)}
        return [*{id(one): one for one in (*firsts.values(), *spread, *examples)}.values()]

    def number(self, examples: Sequence[Example]) -> int:
        """Return how many of the examples are to meet the law."""
        subjects = len({example.subject for example in examples})
        return min(len(examples), self.few - 1 + subjects) if self.quick else len(examples)


def check_placement(*placements: type[Placement] | Placement | str, quick: bool = False) -> PlacementReport:
    """Try every law on placements.

    Args:
        placements: values, texts, or classes; of a class, those of its `examples`, or some that follow from the types
            of its fields, and some with drawn numbers.
        quick: try a few examples of each law, and no drawn numbers.

    Raises:
        SpmdirError: one of them is not a placement.

    Example:
        >>> assert spmdir.testing.check_placement("Cyclic(0, 2)").sound
    """
    effort = Effort(quick)
    return PlacementReport(tuple(_until_cut_off(verdict for one in placements for verdict in _of_given(one, effort))))


def _of_given(given: type[Placement] | Placement | str, effort: Effort) -> Iterator[Verdict]:
    if isinstance(given, type) and issubclass(given, Placement):
        yield from _of_class(given, None, effort)
        return
    placement = parse_placement(given) if isinstance(given, str) else given
    require_type("placement", placement, Placement, "a class, a value or the text of one, as 'Cyclic(0, 2)'")
    verdict = _of_value(placement, None, effort)
    yield _judged(verdict, placement, None, verdict.unmet)


def _until_cut_off(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield `verdicts` up to one that was cut off: what torch does after it was interrupted says nothing."""
    for verdict in verdicts:
        yield verdict
        if verdict.cut_off:
            return


def check_plugin(source: str, effort: Effort | None = None) -> PlacementReport:
    """Try the laws on the placements that a plug-in declares.

    Args:
        source: the path of a Python file, or the name of an installed plug-in or a module, as for
            `spmdir.plugins.load_plugin`.
        effort: how much is tried; by default everything.

    Raises:
        SpmdirError: the plug-in cannot be loaded, or declares no placement.
    """
    return PlacementReport(tuple(verdicts_of(source, effort or Effort())))


def verdicts_of(source: str, effort: Effort) -> Iterator[Verdict]:
    """Yield the verdicts of `check_plugin` as they are reached."""
    path = source if source.endswith(".py") else None
    plugin, error = _in_time(lambda: load_plugin(source), effort)
    if plugin is None:
        assert error is not None
        if isinstance(error, SpmdirError) or path is None:
            raise error
        raise SpmdirError(f"plug-in {_told(error)}", Location(path, line_in(path, error) or 1, 1))
    own = [kind for kind in plugin.classes(Placement) if hasattr(kind, "text")]
    if not own:
        raise SpmdirError(
            "no placement is declared here; expected a class with a `text` that derives from ShardPlacement, "
            "PartialPlacement or Placement of spmdir.placement",
            Location(source, 1, 1),
        )
    yield from _until_cut_off(verdict for kind in own for verdict in _of_class(kind, path, effort))


def _of_class(kind: type[Placement], path: str | None, effort: Effort) -> Iterator[Verdict]:
    if not attrs.has(kind):
        error = SpmdirError(
            f"{kind.__name__} is not an attrs class; decorate it with @attrs.frozen", _place(kind, path)
        )
        yield Verdict(kind.__name__, 0, 0, broken=error)
        return
    found, error = _in_time(lambda: (instances(kind), () if effort.quick else drawn_instances(kind)), effort)  # pyright: ignore[reportArgumentType]
    if found is None:
        fault = SpmdirError(f"{kind.__name__}: {_EXAMPLES}: {_told(error)}", _place(kind, path, ("examples",), error))
        fault.__cause__ = error
        yield Verdict(kind.__name__, 0, 0, broken=fault)
        return
    usual, drawn = found
    unmet: set[Unchecked] | None = None
    for number, placement in enumerate(usual, 1):
        verdict = _of_value(placement, path, effort)
        if not verdict.broken:
            unmet = {*verdict.unmet} if unmet is None else unmet.intersection(verdict.unmet)
        yield _judged(verdict, placement, path, unmet or () if number == len(usual) else ())
    for placement in filter(_is_takeable, drawn):
        verdict = _of_value(placement, path, attrs.evolve(effort, quick=True))
        yield attrs.evolve(verdict, unmet=())  # nobody asked for these numbers, so they need not meet every law


def _of_value(placement: Placement, path: str | None, effort: Effort) -> Verdict:
    tried = examples = left_out = 0
    unchecked: list[Unchecked] = []
    for law in effort.chosen:
        say("{}: law '{}'", _text(placement), law.name)
        # What users draw afterwards does not depend on how often laws draw.
        with torch.random.fork_rng(()):
            trial = _try(law, placement, path, effort)
        tried, examples = tried + bool(trial.examples), examples + trial.examples
        left_out += trial.left_out
        if trial.broken is not None:
            return Verdict(_text(placement), tried, examples, left_out, trial.broken)
        unchecked += unchecked_of(placement, law, trial.unmet)
    return Verdict(_text(placement), tried, examples, left_out, unmet=tuple(unchecked))


def _judged(verdict: Verdict, placement: Placement, path: str | None, of_class: Collection[Unchecked]) -> Verdict:
    """Return a verdict with the error that something is not checked, if it is so.

    Args:
        of_class: what no placement of the class met of what the class declares.
    """
    unmet = tuple(one for one in verdict.unmet if not one.is_of_class or one in of_class)
    unexplained = [one for one in unmet if one.reason is None]
    error = _unchecked(placement, path, unexplained) if unexplained else None
    return attrs.evolve(verdict, unmet=unmet, unchecked=error)


def _unchecked(placement: Placement, path: str | None, unchecked: Sequence[Unchecked]) -> SpmdirError:
    """Return the error that no example met some laws."""
    if _is_takeable(placement):
        named = ", ".join(map(str, unchecked[:NAMED]))
        named += f" and {len(unchecked) - NAMED} more" if len(unchecked) > NAMED else ""
        wanted = ", and ".join(dict.fromkeys(one.wanted for one in unchecked))
    else:
        named = ", ".join(dict.fromkeys(f"law '{one.law}'" for one in unchecked))
        wanted = "no tensor that was tried passes `check`: name shapes that do in `sample_shapes`"
    return SpmdirError(
        f"{_text(placement)}: not checked, since no example fits: {named}; {wanted}, or give the reason in `unchecked`",
        _place(type(placement), path, ("check", "rules", "lift")),
    )


def _is_takeable(placement: Placement) -> bool:
    """Return whether a tensor that is tried passes `check`, or `check` fails, which laws find."""
    taken, error = _in_time(lambda: layouts(placement), Effort())
    return bool(taken) or error is not None


@attrs.frozen
class _Trial:
    """What became of one law: examples that met it, those left out, the subjects that none met, and what is wrong."""

    examples: int = 0
    left_out: int = 0
    unmet: tuple[str, ...] = ()
    broken: SpmdirError | None = None


def _try(law: Law, placement: Placement, path: str | None, effort: Effort) -> _Trial:
    """Return what became of one law, up to the first example that breaks it."""

    def broken(fault: str, example: Example = _NONE, error: BaseException | None = None) -> SpmdirError:
        where = f" on {text}" if (text := _text(example)) else ""
        message = f"{_text(placement)}: law '{law.name}' ({law.says}) is broken{where}: {fault}"
        made = SpmdirError(message, _place(type(placement), path, (*example.methods, *law.about), error))
        made.__cause__ = error
        return made

    every, error = _in_time(lambda: (list(law.subjects(placement)), list(law.examples(placement))), effort, 100)
    if every is None:
        return _Trial(broken=broken(_told(error), error=error))
    subjects, examples = every
    wanted = effort.number(examples)
    if law.all_hold is not None:
        chosen = effort.of(examples)[:wanted]
        hold, error = _in_time(lambda: law.all_hold(placement, chosen), effort, len(chosen))  # type: ignore[misc]
        if hold:
            return _Trial(len(chosen), len(examples) - len(chosen), _unmet(subjects, chosen))
        if isinstance(error, TooLong):
            return _Trial(len(chosen), broken=broken(_told(error), error=error))
    met: list[Example] = []
    for number, example in enumerate(effort.of(examples), 1):
        if len(met) >= wanted and example.subject not in _unmet(subjects, met):
            continue
        say("{}: law '{}', example {} of {}", _text(placement), law.name, number, len(examples))
        fault, error = _in_time(lambda one=example: (law.fault(placement, one),), effort, 100 * law.is_slow)
        if isinstance(error, UnsupportedError):  # the placement does not hold such values
            continue
        if fault is None:
            return _Trial(len(met) + 1, broken=broken(_told(error), example, error))
        if isinstance(fault[0], str):
            return _Trial(len(met) + 1, broken=broken(fault[0], example))
        if fault[0] is not Outcome.UNMET:
            met.append(example)
    return _Trial(len(met), len(examples) - len(met) if effort.quick else 0, _unmet(subjects, met))


def _unmet(subjects: Sequence[str], met: Sequence[Example]) -> tuple[str, ...]:
    """Return the subjects of a law that no example met; any example meets the law as a whole."""
    known = {example.subject for example in met} | ({""} if met else set())
    return tuple(subject for subject in subjects if subject not in known)


_NONE = Example()


def _in_time(
    run: Callable[[], Answer], effort: Effort, examples: int = 0
) -> tuple[Answer | None, BaseException | None]:
    """Return what `run` returns, or what it raises: code of plug-ins may raise anything, or not end.

    `examples` is of how many it makes use.
    """
    try:
        with time_limit(effort.seconds * (1 + examples / 10)):
            return run(), None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return None, error


def _told(error: BaseException | None) -> str:
    if isinstance(error, SpmdirError):
        return error.message
    try:
        text = str(error).partition("\n")[0]
    except Exception:
        text = "its text cannot be made"
    return (
        f"{text}; nothing after it is tried" if isinstance(error, TooLong) else f"raises {type(error).__name__}: {text}"
    )


def _text(value: Placement | Example) -> str:
    """Return its text, or the name of its class where that cannot be made."""
    try:
        return str(value)
    except Exception:
        return type(value).__name__


def _place(
    kind: type, path: str | None, about: Sequence[str] = (), error: BaseException | None = None
) -> Location | None:
    """Return the line of the file at `path`, or of the class's own, that raised `error`.

    Else the line of the first name in `about` that the class declares, else that of the class.
    """
    try:
        source, (lines, first) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    if source is None:
        return None
    raised = _line_of(error, source) if error else None
    declared = (first + at for name in about for at, line in enumerate(lines) if re.match(rf"\s+(def )?{name}\b", line))
    return Location(path or source, raised or next(declared, first), 1)


def _line_of(error: BaseException, source: str) -> int | None:
    """Return the line of the file `source` that `error` names, or went through."""
    where = error.location if isinstance(error, SpmdirError) else None
    return where.line if where is not None and where.file == source else line_in(source, error)
