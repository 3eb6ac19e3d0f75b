"""Try every law on placements, and say which is broken on which example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import attrs
import torch

from spmdir.checking.placements.instances import drawn_instances, instances
from spmdir.checking.placements.law import Example, Law
from spmdir.checking.placements.rule_laws import never_run
from spmdir.checking.placements.table import LAWS
from spmdir.checking.placements.time_limit import TooLong, time_limit
from spmdir.core.errors import Location, SpmdirError, did_you_mean, require_type
from spmdir.core.html_text import ShownAsText
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.progress import say
from spmdir.plugins import line_in, load_plugin

_EXAMPLES = "law 'examples' (its `examples` are texts of it, or it takes usual values) is broken"

FEW = 12
"""Examples of a law that are tried quickly."""

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
        few: how many examples of each law are tried quickly, at least 2, spread evenly over all.
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
        return [law for law in LAWS if not self.laws or law.name in self.laws]

    def of(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return the examples to try."""
        if not self.quick or len(examples) <= self.few:
            return examples
        return [examples[at * (len(examples) - 1) // (self.few - 1)] for at in range(self.few)]


@attrs.frozen
class Verdict:
    """What became of one placement.

    Attributes:
        placement: its text.
        laws, examples: how many were tried.
        left_out: how many examples were not, since the check was a quick one.
        broken: the first law that is broken, as an error on its first example, at the class or at the line that raised;
            the laws after it build on it and are not tried. None if all hold.
        never_run: strategies that its class has as text and no sample is a call of, so that nothing is known of them.
    """

    placement: str
    laws: int
    examples: int
    left_out: int = 0
    broken: SpmdirError | None = None
    never_run: tuple[str, ...] = ()

    @property
    def cut_off(self) -> bool:
        """Return whether code did not end, so that torch may have been interrupted and nothing after it is tried."""
        return self.broken is not None and isinstance(self.broken.__cause__, TooLong)

    def __str__(self) -> str:
        of = f" of {self.examples + self.left_out}" if self.left_out else ""
        if self.broken:
            return str(self.broken)
        lines = [f"{self.placement}: {self.laws} laws hold ({self.examples}{of} examples)"]
        lines += [f"{self.placement}: not checked, since no sample is a call of it: {text}" for text in self.never_run]
        return "\n".join(lines)


@attrs.frozen
class Report(ShownAsText):
    """What became of several placements; its text has a line for each."""

    verdicts: tuple[Verdict, ...]

    @property
    def broken(self) -> tuple[SpmdirError, ...]:
        return tuple(verdict.broken for verdict in self.verdicts if verdict.broken)

    @property
    def sound(self) -> bool:
        return not self.broken

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts))


def check_placement(*placements: type[Placement] | Placement | str, quick: bool = False) -> Report:
    """Try every law on placements.

    Args:
        placements: values, texts, or classes; of a class, those of its `examples`, or some that follow from the types
            of its fields, and some with drawn numbers.
        quick: try a few examples of each law, and no drawn numbers.

    Raises:
        SpmdirError: one of them is not a placement.

    Example:
        >>> assert spmdir.check_placement("Cyclic(0, 2)").sound
    """
    effort = Effort(quick)
    return Report(tuple(_until_cut_off(verdict for one in placements for verdict in _of_given(one, effort))))


def _of_given(given: type[Placement] | Placement | str, effort: Effort) -> Iterator[Verdict]:
    if isinstance(given, type) and issubclass(given, Placement):
        yield from _of_class(given, None, effort)
        return
    placement = parse_placement(given) if isinstance(given, str) else given
    require_type("placement", placement, Placement, "a class, a value or the text of one, as 'Cyclic(0, 2)'")
    yield _of_value(placement, None, effort)


def _until_cut_off(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield `verdicts` up to one that was cut off: what torch does after it was interrupted says nothing."""
    for verdict in verdicts:
        yield verdict
        if verdict.cut_off:
            return


def check_plugin(source: str, effort: Effort | None = None) -> Report:
    """Try the laws on the placements that a plug-in declares.

    Args:
        source: the path of a Python file, or the name of an installed plug-in or a module, as for `spmdir.load_plugin`.
        effort: how much is tried; by default everything.

    Raises:
        SpmdirError: the plug-in cannot be loaded, or declares no placement.
    """
    return Report(tuple(verdicts_of(source, effort or Effort())))


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
            "no placement is declared here; expected a class with a `text` that derives from spmdir.ShardPlacement, "
            "spmdir.PartialPlacement or spmdir.Placement",
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
    for placement in usual:
        yield _of_value(placement, path, effort)
    for placement in drawn:
        yield _of_value(placement, path, attrs.evolve(effort, quick=True))


def _of_value(placement: Placement, path: str | None, effort: Effort) -> Verdict:
    tried = examples = left_out = 0
    for law in effort.chosen:
        say("{}: law '{}'", _text(placement), law.name)
        # What users draw afterwards does not depend on how often laws draw.
        with torch.random.fork_rng(()):
            count, out, broken = _try(law, placement, path, effort)
        tried, examples, left_out = tried + bool(count), examples + count, left_out + out
        if broken is not None:
            return Verdict(_text(placement), tried, examples, left_out, broken)
    by_texts = any(law.name == "text strategies" for law in effort.chosen)
    texts, _ = _in_time(lambda: never_run(placement), effort, 100) if by_texts else (None, None)
    return Verdict(_text(placement), tried, examples, left_out, never_run=tuple(texts or ()))


def _try(law: Law, placement: Placement, path: str | None, effort: Effort) -> tuple[int, int, SpmdirError | None]:
    """Return how many examples were tried and left out, and what is wrong with the last that was tried."""

    def broken(fault: str, example: Example = _NONE, error: BaseException | None = None) -> SpmdirError:
        where = f" on {text}" if (text := _text(example)) else ""
        message = f"{_text(placement)}: law '{law.name}' ({law.says}) is broken{where}: {fault}"
        made = SpmdirError(message, _place(type(placement), path, (*example.methods, *law.about), error))
        made.__cause__ = error
        return made

    every, error = _in_time(lambda: list(law.examples(placement)), effort, 100)
    if every is None:
        return 0, 0, broken(_told(error), error=error)
    chosen = effort.of(every)
    left_out = len(every) - len(chosen)
    if law.all_hold is not None:
        hold, error = _in_time(lambda: law.all_hold(placement, chosen), effort, len(chosen))  # type: ignore[misc]
        if hold:
            return len(chosen), left_out, None
        if isinstance(error, TooLong):
            return len(chosen), left_out, broken(_told(error), error=error)
    for number, example in enumerate(chosen, 1):
        say("{}: law '{}', example {} of {}", _text(placement), law.name, number, len(chosen))
        fault, error = _in_time(lambda one=example: (law.fault(placement, one),), effort)
        if fault is None:
            return number, left_out, broken(_told(error), example, error)
        if fault[0] is not None:
            return number, left_out, broken(fault[0], example)
    return len(chosen), left_out, None


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
