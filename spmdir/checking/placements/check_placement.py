"""Check all laws of placements, and report the first violation with its example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import attrs
import torch

from spmdir.checking.placements.instances import drawn_instances, instances
from spmdir.checking.placements.law import Example, Law, Outcome
from spmdir.checking.placements.law_table import LAWS
from spmdir.checking.placements.layouts import layouts
from spmdir.checking.placements.time_limit import TooLong, time_limit
from spmdir.checking.placements.verdict import PlacementReport, Unchecked, Verdict, unchecked_entries
from spmdir.core.errors import Location, SpmdirError, UnsupportedError, did_you_mean, require_type
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.progress import say
from spmdir.plugins import line_in, load_plugin

_BROKEN_EXAMPLES = "law 'examples' (its `examples` are its texts, or its fields accept usual values) is broken"

FEW = 12
"""The number of examples of a law in a quick check."""

MAX_NAMED = 8
"""The largest number of laws without an example that an error names."""

SECONDS = 10.0
"""The time limit for one example, in seconds. All n examples together have 1 + n / 10 times this limit."""

Result = TypeVar("Result")


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
                raise SpmdirError(
                    f"unknown law '{name}'; expected the name of a law{did_you_mean(name, names)}; --list-laws "
                    "prints all laws"
                )

    @property
    def selected_laws(self) -> Sequence[Law]:
        """The laws to check, in the order of LAWS."""
        if self.laws:
            return [law for law in LAWS if law.name in self.laws]
        return [law for law in LAWS if not (self.quick and law.is_slow)]

    def select(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return `examples` in the order in which to try them.

        A quick check tries one example of each subject first, then `few` examples spread evenly. The others follow:
        they replace examples that the law does not apply to.
        """
        if not self.quick or len(examples) <= self.few:
            return examples
        spread = [examples[index * (len(examples) - 1) // (self.few - 1)] for index in range(self.few)]
        first_of_subject = {example.subject: example for example in reversed(examples)}
        ordered = (*first_of_subject.values(), *spread, *examples)
        return [*{id(example): example for example in ordered}.values()]

    def required_number(self, examples: Sequence[Example]) -> int:
        """Return the number of examples to check: in a quick check, one for each subject and `few` - 1 more."""
        if not self.quick:
            return len(examples)
        subject_count = len({example.subject for example in examples})
        return min(len(examples), self.few - 1 + subject_count)


def check_placement(*placements: type[Placement] | Placement | str, quick: bool = False) -> PlacementReport:
    """Check the laws of placements on examples.

    Args:
        placements: values, texts, or classes. Of a class, its `examples` are checked, or placements with usual values
            of its fields; then placements with random numbers in its fields.
        quick: whether to try only a few examples of each law, and no random numbers.

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
    """Yield the verdicts on a class with all its instances, or on one placement."""
    if isinstance(argument, type) and issubclass(argument, Placement):
        yield from _verdicts_of_class(argument, None, effort)
        return
    placement = parse_placement(argument) if isinstance(argument, str) else argument
    require_type("placement", placement, Placement, "a class, a value or the text of one, as 'Cyclic(0, 2)'")
    verdict = _verdict_of_placement(placement, None, effort)
    yield _with_uncovered_error(verdict, placement, None, verdict.uncovered)


def _until_cut_off(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield `verdicts` up to the first that was cut off, because it may leave torch in an invalid state."""
    for verdict in verdicts:
        yield verdict
        if verdict.is_cut_off:
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
    """Yield the verdicts of `check_plugin` one by one, up to the first that exceeds its time limit.

    Raises:
        SpmdirError: the plug-in cannot be loaded, or declares no placement.
    """
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
            "the file declares no placement; expected a class with a `text` that derives from ShardPlacement, "
            "PartialPlacement or Placement of spmdir.placement",
            Location(source, 1, 1),
        )
    yield from _until_cut_off(verdict for kind in classes for verdict in _verdicts_of_class(kind, path, effort))


def _verdicts_of_class(kind: type[Placement], path: str | None, effort: Effort) -> Iterator[Verdict]:
    """Yield the verdicts on the instances of a class; a single verdict with an error if they cannot be made.

    The last usual instance gets the error for subjects of laws that no instance of the class covers.
    """
    if not attrs.has(kind):
        error = SpmdirError(
            f"{kind.__name__} is not an attrs class; expected a frozen one: decorate it with @attrs.frozen",
            _location(kind, path),
        )
        yield Verdict(kind.__name__, 0, 0, broken=error)
        return

    def usual_and_drawn() -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
        """Return the usual instances, and those with random numbers; a quick check has none of the latter."""
        return instances(kind), () if effort.quick else drawn_instances(kind)  # pyright: ignore[reportArgumentType]

    placements, error = _run_in_time(usual_and_drawn, effort)
    if placements is None:
        fault = SpmdirError(
            f"{kind.__name__}: {_BROKEN_EXAMPLES}: {_describe_error(error)}",
            _location(kind, path, ("examples",), error),
        )
        fault.__cause__ = error
        yield Verdict(kind.__name__, 0, 0, broken=fault)
        return
    usual, drawn = placements
    uncovered: set[Unchecked] | None = None
    for number, placement in enumerate(usual, 1):
        verdict = _verdict_of_placement(placement, path, effort)
        if not verdict.broken:
            uncovered = {*verdict.uncovered} if uncovered is None else uncovered.intersection(verdict.uncovered)
        # Only the last instance reports what none of them covers; `uncovered` is None if all verdicts are broken.
        yield _with_uncovered_error(verdict, placement, path, uncovered or () if number == len(usual) else ())
    for placement in filter(_accepts_any_tensor, drawn):
        verdict = _verdict_of_placement(placement, path, attrs.evolve(effort, quick=True))
        yield attrs.evolve(verdict, uncovered=())  # random fields need not have an example for every law


def _verdict_of_placement(placement: Placement, path: str | None, effort: Effort) -> Verdict:
    """Check the selected laws until one is broken, and return the verdict on the placement."""
    law_count = example_count = omitted_count = 0
    uncovered: list[Unchecked] = []
    for law in effort.selected_laws:
        say("{}: law '{}'", _text(placement), law.name)
        # The check must not change torch's random state, which belongs to the user.
        with torch.random.fork_rng(()):
            result = _check_law(law, placement, path, effort)
        if result.examples:
            law_count += 1
        example_count += result.examples
        omitted_count += result.omitted
        if result.broken is not None:
            return Verdict(_text(placement), law_count, example_count, omitted_count, result.broken)
        uncovered += unchecked_entries(placement, law, result.uncovered)
    return Verdict(_text(placement), law_count, example_count, omitted_count, uncovered=tuple(uncovered))


def _with_uncovered_error(
    verdict: Verdict, placement: Placement, path: str | None, uncovered_by_class: Collection[Unchecked]
) -> Verdict:
    """Return `verdict` with an error for its parts of laws that have neither an example nor a reason.

    Args:
        uncovered_by_class: the parts that no placement of the class covers.
    """
    uncovered = tuple(entry for entry in verdict.uncovered if not entry.is_of_class or entry in uncovered_by_class)
    without_reason = [entry for entry in uncovered if entry.reason is None]
    error = _uncovered_error(placement, path, without_reason) if without_reason else None
    return attrs.evolve(verdict, uncovered=uncovered, unchecked=error)


def _uncovered_error(placement: Placement, path: str | None, uncovered: Sequence[Unchecked]) -> SpmdirError:
    """Return the error for parts of laws without an example.

    If the placement rejects all tensors, the remedy is to declare shapes that it accepts.
    """
    if _accepts_any_tensor(placement):
        parts = ", ".join(map(str, uncovered[:MAX_NAMED]))
        parts += f" and {len(uncovered) - MAX_NAMED} more" if len(uncovered) > MAX_NAMED else ""
        remedy = ", and ".join(dict.fromkeys(entry.remedy for entry in uncovered))
    else:
        parts = ", ".join(dict.fromkeys(f"law '{entry.law}'" for entry in uncovered))
        remedy = "`check` rejects all tensors of the examples: add shapes that it accepts to `sample_shapes`"
    return SpmdirError(
        f"{_text(placement)}: not checked, since no example fits: {parts}; {remedy}, or give the reason in `unchecked`",
        _location(type(placement), path, ("check", "rules", "lift")),
    )


def _accepts_any_tensor(placement: Placement) -> bool:
    """Return whether `check` accepts at least one tensor. Also return True if it fails, which laws report."""
    accepted, error = _run_in_time(lambda: layouts(placement), Effort())
    return bool(accepted) or error is not None


@attrs.frozen
class _LawResult:
    """The result of one law for a placement.

    Attributes:
        examples, omitted: the numbers of examples that were checked, and that a quick check omitted.
        uncovered: the subjects without an example.
        broken: the error of the first violation.
    """

    examples: int = 0
    omitted: int = 0
    uncovered: tuple[str, ...] = ()
    broken: SpmdirError | None = None


def _check_law(law: Law, placement: Placement, path: str | None, effort: Effort) -> _LawResult:
    """Check the examples of a law, up to the first one that breaks it; return the counts, and the error if one does.

    Examples that the law does not apply to, or whose values the placement cannot represent, are skipped. In a quick
    check, further examples replace them, and examples beyond the required number are tried for uncovered subjects only.
    """

    def broken_law(fault: str, example: Example = _NO_TENSOR, error: BaseException | None = None) -> SpmdirError:
        """Return the error for `fault` on `example`; `error` is the exception that reveals it, if there is one."""
        example_text = _text(example)
        where = f" on {example_text}" if example_text else ""
        message = f"{_text(placement)}: law '{law.name}' ({law.statement}) is broken{where}: {fault}"
        declarations = (*example.declarations, *law.declarations)
        law_error = SpmdirError(message, _location(type(placement), path, declarations, error))
        law_error.__cause__ = error
        return law_error

    # The time limit is that of 100 examples, because making the examples runs code of the placement many times.
    subjects_and_examples, error = _run_in_time(
        lambda: (list(law.subjects(placement)), list(law.examples(placement))), effort, 100
    )
    if subjects_and_examples is None:
        return _LawResult(broken=broken_law(_describe_error(error), error=error))
    subjects, examples = subjects_and_examples
    required = effort.required_number(examples)
    if law.holds_on_all is not None:
        selected = effort.select(examples)[:required]
        holds, error = _run_in_time(lambda: law.holds_on_all(placement, selected), effort, len(selected))  # type: ignore[misc]
        if holds:
            return _LawResult(len(selected), len(examples) - len(selected), _uncovered(subjects, selected))
        if isinstance(error, TooLong):
            return _LawResult(len(selected), broken=broken_law(_describe_error(error), error=error))
        # An example breaks the law or raises an error. The loop below finds the first one.
    checked: list[Example] = []
    for number, example in enumerate(effort.select(examples), 1):
        if len(checked) >= required and example.subject not in _uncovered(subjects, checked):
            continue
        say("{}: law '{}', example {} of {}", _text(placement), law.name, number, len(examples))
        # One example of a slow law takes as long as 100 others.
        fault, error = _run_in_time(partial(law.find_fault, placement, example), effort, 100 * law.is_slow)
        if isinstance(error, UnsupportedError):  # the placement cannot represent the values
            continue
        if error is not None:
            return _LawResult(len(checked) + 1, broken=broken_law(_describe_error(error), example, error))
        if isinstance(fault, str):
            return _LawResult(len(checked) + 1, broken=broken_law(fault, example))
        if fault is not Outcome.NOT_APPLICABLE:
            checked.append(example)
    omitted = len(examples) - len(checked) if effort.quick else 0
    return _LawResult(len(checked), omitted, _uncovered(subjects, checked))


def _uncovered(subjects: Sequence[str], examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the subjects of a law that no example covers. Every example covers the subject ""."""
    covered = {example.subject for example in examples} | ({""} if examples else set())
    return tuple(subject for subject in subjects if subject not in covered)


_NO_TENSOR = Example()


def _run_in_time(
    run: Callable[[], Result], effort: Effort, examples: int = 0
) -> tuple[Result | None, BaseException | None]:
    """Run plug-in code, which may raise any exception or not terminate. Return its result and its exception.

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
    """Return an error of the code of a placement as the end of a message."""
    if isinstance(error, SpmdirError):
        return error.message
    try:
        text = str(error).partition("\n")[0]
    except Exception:
        text = "its message cannot be printed"
    if isinstance(error, TooLong):
        return f"{text}; the check ends here"
    return f"raises {type(error).__name__}: {text}"


def _text(value: Placement | Example) -> str:
    """Return `str(value)`, or the name of its class if the code of a plug-in raises in `str`."""
    try:
        return str(value)
    except Exception:
        return type(value).__name__


def _location(
    kind: type, path: str | None, declarations: Sequence[str] = (), error: BaseException | None = None
) -> Location | None:
    """Return the location of a fault: the line that raised `error`, else a declaration, else the class.

    Args:
        path: the file of the location; by default the file of the class.
        declarations: names of attributes and methods. The first that the class declares is the location.
    """
    try:
        source, (lines, first_line) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    if source is None:
        return None
    raising_line = _line_of(error, source) if error else None
    if raising_line:
        return Location(path or source, raising_line, 1)
    for name in declarations:
        for number, line in enumerate(lines, first_line):
            if re.match(rf"\s+(def )?{name}\b", line):
                return Location(path or source, number, 1)
    return Location(path or source, first_line, 1)


def _line_of(error: BaseException, source: str) -> int | None:
    """Return the line of file `source` in the location or traceback of `error`."""
    location = error.location if isinstance(error, SpmdirError) else None
    return location.line if location is not None and location.file == source else line_in(source, error)
