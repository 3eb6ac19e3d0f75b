"""Check all laws of placements, and report the first violation with its example."""

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
"""The number of examples of a law in a quick check."""

NAMED = 8
"""The most unchecked parts of laws that an error names."""

SECONDS = 10.0
"""The time limit for one example, in seconds. All n examples together have 1 + n / 10 times this limit."""

Answer = TypeVar("Answer")


@attrs.frozen
class Effort:
    """The extent of a check.

    Attributes:
        quick: whether to try `few` examples of each law, and no drawn values of fields.
        laws: the names of the laws to check; all if empty.
        seconds: the time limit for one example.
        few: the number of examples of a law in a quick check, at least 2. They are spread evenly, with at least one
            of each subject of the law.
    """

    quick: bool = False
    laws: tuple[str, ...] = ()
    seconds: float = SECONDS
    few: int = FEW

    def __attrs_post_init__(self) -> None:
        names = [law.name for law in LAWS]
        for name in self.laws:
            if name not in names:
                raise SpmdirError(f"there is no law '{name}'{did_you_mean(name, names)}; see --list-laws")

    @property
    def selected_laws(self) -> Sequence[Law]:
        return [law for law in LAWS if (law.name in self.laws if self.laws else not (self.quick and law.is_slow))]

    def select(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return the examples to try, followed by replacements for those that do not meet the law."""
        if not self.quick or len(examples) <= self.few:
            return examples
        spread = [examples[index * (len(examples) - 1) // (self.few - 1)] for index in range(self.few)]
        first_of_subject = {example.subject: example for example in reversed(examples)}
        return [*{id(one): one for one in (*first_of_subject.values(), *spread, *examples)}.values()]

    def required_number(self, examples: Sequence[Example]) -> int:
        """Return the number of examples that must meet the law."""
        subjects = len({example.subject for example in examples})
        return min(len(examples), self.few - 1 + subjects) if self.quick else len(examples)


def check_placement(*placements: type[Placement] | Placement | str, quick: bool = False) -> PlacementReport:
    """Check all laws of placements.

    Args:
        placements: values, texts, or classes. A class is checked by its `examples`, or by values of its fields, and
            by drawn numbers.
        quick: whether to try only a few examples of each law, and no drawn numbers.

    Raises:
        SpmdirError: an argument is not a placement.

    Example:
        >>> assert spmdir.testing.check_placement("Cyclic(0, 2)").sound
    """
    effort = Effort(quick)
    return PlacementReport(
        tuple(_until_cut_off(verdict for argument in placements for verdict in _verdicts_of_argument(argument, effort)))
    )


def _verdicts_of_argument(argument: type[Placement] | Placement | str, effort: Effort) -> Iterator[Verdict]:
    if isinstance(argument, type) and issubclass(argument, Placement):
        yield from _verdicts_of_class(argument, None, effort)
        return
    placement = parse_placement(argument) if isinstance(argument, str) else argument
    require_type("placement", placement, Placement, "a class, a value or the text of one, as 'Cyclic(0, 2)'")
    verdict = _verdict_of_value(placement, None, effort)
    yield _with_unchecked(verdict, placement, None, verdict.unmet)


def _until_cut_off(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield `verdicts` up to the first that was cut off, because torch may be in a wrong state after that."""
    for verdict in verdicts:
        yield verdict
        if verdict.cut_off:
            return


def check_plugin(source: str, effort: Effort | None = None) -> PlacementReport:
    """Check the laws of the placements that a plug-in declares.

    Args:
        source: the path of a Python file, or the name of an installed plug-in or a module, as for
            `spmdir.plugins.load_plugin`.
        effort: the extent of the check; by default all laws and examples.

    Raises:
        SpmdirError: the plug-in cannot be loaded, or declares no placement.
    """
    return PlacementReport(tuple(verdicts_of(source, effort or Effort())))


def verdicts_of(source: str, effort: Effort) -> Iterator[Verdict]:
    """Yield the verdicts of `check_plugin` as they are reached."""
    path = source if source.endswith(".py") else None
    plugin, error = _run_in_time(lambda: load_plugin(source), effort)
    if plugin is None:
        assert error is not None
        if isinstance(error, SpmdirError) or path is None:
            raise error
        raise SpmdirError(f"plug-in {_describe_error(error)}", Location(path, line_in(path, error) or 1, 1))
    classes = [kind for kind in plugin.classes(Placement) if hasattr(kind, "text")]
    if not classes:
        raise SpmdirError(
            "no placement is declared here; expected a class with a `text` that derives from ShardPlacement, "
            "PartialPlacement or Placement of spmdir.placement",
            Location(source, 1, 1),
        )
    yield from _until_cut_off(verdict for kind in classes for verdict in _verdicts_of_class(kind, path, effort))


def _verdicts_of_class(kind: type[Placement], path: str | None, effort: Effort) -> Iterator[Verdict]:
    if not attrs.has(kind):
        error = SpmdirError(
            f"{kind.__name__} is not an attrs class; decorate it with @attrs.frozen", _location(kind, path)
        )
        yield Verdict(kind.__name__, 0, 0, broken=error)
        return
    placements, error = _run_in_time(lambda: (instances(kind), () if effort.quick else drawn_instances(kind)), effort)  # pyright: ignore[reportArgumentType]
    if placements is None:
        fault = SpmdirError(
            f"{kind.__name__}: {_EXAMPLES}: {_describe_error(error)}", _location(kind, path, ("examples",), error)
        )
        fault.__cause__ = error
        yield Verdict(kind.__name__, 0, 0, broken=fault)
        return
    usual, drawn = placements
    unmet: set[Unchecked] | None = None
    for number, placement in enumerate(usual, 1):
        verdict = _verdict_of_value(placement, path, effort)
        if not verdict.broken:
            unmet = {*verdict.unmet} if unmet is None else unmet.intersection(verdict.unmet)
        yield _with_unchecked(verdict, placement, path, unmet or () if number == len(usual) else ())
    for placement in filter(_accepts_a_tensor, drawn):
        verdict = _verdict_of_value(placement, path, attrs.evolve(effort, quick=True))
        yield attrs.evolve(verdict, unmet=())  # a drawn value need not have an example for every law


def _verdict_of_value(placement: Placement, path: str | None, effort: Effort) -> Verdict:
    tried = examples = left_out = 0
    unchecked: list[Unchecked] = []
    for law in effort.selected_laws:
        say("{}: law '{}'", _text(placement), law.name)
        # The random numbers of the user must not depend on those of laws.
        with torch.random.fork_rng(()):
            trial = _try(law, placement, path, effort)
        tried, examples = tried + bool(trial.examples), examples + trial.examples
        left_out += trial.left_out
        if trial.broken is not None:
            return Verdict(_text(placement), tried, examples, left_out, trial.broken)
        unchecked += unchecked_of(placement, law, trial.unmet)
    return Verdict(_text(placement), tried, examples, left_out, unmet=tuple(unchecked))


def _with_unchecked(
    verdict: Verdict, placement: Placement, path: str | None, unmet_by_class: Collection[Unchecked]
) -> Verdict:
    """Return a verdict with the error for its unchecked parts, if there are any without a reason.

    Args:
        unmet_by_class: the parts that no placement of the class met.
    """
    unmet = tuple(entry for entry in verdict.unmet if not entry.is_of_class or entry in unmet_by_class)
    unexplained = [entry for entry in unmet if entry.reason is None]
    error = _unchecked_error(placement, path, unexplained) if unexplained else None
    return attrs.evolve(verdict, unmet=unmet, unchecked=error)


def _unchecked_error(placement: Placement, path: str | None, unchecked: Sequence[Unchecked]) -> SpmdirError:
    """Return the error for laws that no example met."""
    if _accepts_a_tensor(placement):
        named = ", ".join(map(str, unchecked[:NAMED]))
        named += f" and {len(unchecked) - NAMED} more" if len(unchecked) > NAMED else ""
        remedy = ", and ".join(dict.fromkeys(entry.wanted for entry in unchecked))
    else:
        named = ", ".join(dict.fromkeys(f"law '{entry.law}'" for entry in unchecked))
        remedy = "no tensor that was tried passes `check`: name shapes that do in `sample_shapes`"
    return SpmdirError(
        f"{_text(placement)}: not checked, since no example fits: {named}; {remedy}, or give the reason in `unchecked`",
        _location(type(placement), path, ("check", "rules", "lift")),
    )


def _accepts_a_tensor(placement: Placement) -> bool:
    """Return whether `check` accepts a tensor. Also return True if it fails, which laws report."""
    accepted, error = _run_in_time(lambda: layouts(placement), Effort())
    return bool(accepted) or error is not None


@attrs.frozen
class _Trial:
    """The result of one law: the numbers of examples that met it and were omitted, unmet subjects, its violation."""

    examples: int = 0
    left_out: int = 0
    unmet: tuple[str, ...] = ()
    broken: SpmdirError | None = None


def _try(law: Law, placement: Placement, path: str | None, effort: Effort) -> _Trial:
    """Try the examples of a law, up to the first one that breaks it."""

    def broken_law(fault: str, example: Example = _NONE, error: BaseException | None = None) -> SpmdirError:
        where = f" on {text}" if (text := _text(example)) else ""
        message = f"{_text(placement)}: law '{law.name}' ({law.says}) is broken{where}: {fault}"
        law_error = SpmdirError(message, _location(type(placement), path, (*example.methods, *law.about), error))
        law_error.__cause__ = error
        return law_error

    subjects_and_examples, error = _run_in_time(
        lambda: (list(law.subjects(placement)), list(law.examples(placement))), effort, 100
    )
    if subjects_and_examples is None:
        return _Trial(broken=broken_law(_describe_error(error), error=error))
    subjects, examples = subjects_and_examples
    required = effort.required_number(examples)
    if law.all_hold is not None:
        selected = effort.select(examples)[:required]
        all_hold, error = _run_in_time(lambda: law.all_hold(placement, selected), effort, len(selected))  # type: ignore[misc]
        if all_hold:
            return _Trial(len(selected), len(examples) - len(selected), _unmet(subjects, selected))
        if isinstance(error, TooLong):
            return _Trial(len(selected), broken=broken_law(_describe_error(error), error=error))
    met_examples: list[Example] = []
    for number, example in enumerate(effort.select(examples), 1):
        if len(met_examples) >= required and example.subject not in _unmet(subjects, met_examples):
            continue
        say("{}: law '{}', example {} of {}", _text(placement), law.name, number, len(examples))
        fault, error = _run_in_time(lambda one=example: (law.fault(placement, one),), effort, 100 * law.is_slow)
        if isinstance(error, UnsupportedError):  # the placement cannot represent the values
            continue
        if fault is None:
            return _Trial(len(met_examples) + 1, broken=broken_law(_describe_error(error), example, error))
        if isinstance(fault[0], str):
            return _Trial(len(met_examples) + 1, broken=broken_law(fault[0], example))
        if fault[0] is not Outcome.UNMET:
            met_examples.append(example)
    return _Trial(
        len(met_examples), len(examples) - len(met_examples) if effort.quick else 0, _unmet(subjects, met_examples)
    )


def _unmet(subjects: Sequence[str], met: Sequence[Example]) -> tuple[str, ...]:
    """Return the subjects of a law that no example met. Every example meets the subject ""."""
    met_subjects = {example.subject for example in met} | ({""} if met else set())
    return tuple(subject for subject in subjects if subject not in met_subjects)


_NONE = Example()


def _run_in_time(
    run: Callable[[], Answer], effort: Effort, examples: int = 0
) -> tuple[Answer | None, BaseException | None]:
    """Run code of plug-ins, which may raise any exception or not end. Return its result, or its exception.

    Args:
        examples: the number of examples that it uses, which extends the time limit.
    """
    try:
        with time_limit(effort.seconds * (1 + examples / 10)):
            return run(), None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return None, error


def _describe_error(error: BaseException | None) -> str:
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
    """Return `str(value)`, or the name of its class if `str` fails."""
    try:
        return str(value)
    except Exception:
        return type(value).__name__


def _location(
    kind: type, path: str | None, about: Sequence[str] = (), error: BaseException | None = None
) -> Location | None:
    """Return the location of a fault: the line that raised `error`, else a declaration, else the class.

    Args:
        path: the file to name; by default that of the class.
        about: the names of attributes and methods; the first that the class declares is used.
    """
    try:
        source, (lines, first_line) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    if source is None:
        return None
    raised = _line_of(error, source) if error else None
    declared_lines = (
        first_line + index
        for name in about
        for index, line in enumerate(lines)
        if re.match(rf"\s+(def )?{name}\b", line)
    )
    return Location(path or source, raised or next(declared_lines, first_line), 1)


def _line_of(error: BaseException, source: str) -> int | None:
    """Return the line of file `source` in the location or traceback of `error`."""
    location = error.location if isinstance(error, SpmdirError) else None
    return location.line if location is not None and location.file == source else line_in(source, error)
