"""Try every law on placements, and say which is broken on which example."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import attrs
import torch

from spmdir.checking.placements.instances import instances
from spmdir.checking.placements.law import Example, Law
from spmdir.checking.placements.table import LAWS
from spmdir.core.errors import Location, SpmdirError, require_type
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.progress import say
from spmdir.plugins import line_in, load_plugin

_EXAMPLES = "law 'examples' (its `examples` are texts of it, or it takes usual values) is broken"


@attrs.frozen
class Verdict:
    """What became of one placement.

    Attributes:
        placement: its text.
        laws, examples: how many were tried.
        broken: the first law that is broken, as an error on its first example, at the class or at the line that raised;
            the laws after it build on it and are not tried. None if all hold.
    """

    placement: str
    laws: int
    examples: int
    broken: SpmdirError | None = None

    def __str__(self) -> str:
        return str(self.broken or f"{self.placement}: {self.laws} laws hold ({self.examples} examples)")


@attrs.frozen
class Report:
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


def check_placement(*placements: type[Placement] | Placement | str) -> Report:
    """Try every law on placements.

    Args:
        placements: values, texts, or classes; of a class, those of its `examples`, or some that follow from the types
            of its fields.

    Raises:
        SpmdirError: one of them is not a placement.

    Example:
        >>> assert spmdir.check_placement("Cyclic(0, 2)").sound
    """
    verdicts: list[Verdict] = []
    for given in placements:
        if isinstance(given, type) and issubclass(given, Placement):
            verdicts += _of_class(given, None)
            continue
        placement = parse_placement(given) if isinstance(given, str) else given
        require_type("placement", placement, Placement, "a class, a value or the text of one, as 'Cyclic(0, 2)'")
        verdicts.append(_of_value(placement, None))
    return Report(tuple(verdicts))


def check_plugin(source: str) -> Report:
    """Try every law on the placements that a plug-in declares.

    Args:
        source: the path of a Python file, or the name of an installed plug-in or a module, as for `spmdir.load_plugin`.

    Raises:
        SpmdirError: the plug-in cannot be loaded, or declares no placement.
    """
    own = [kind for kind in load_plugin(source).classes(Placement) if hasattr(kind, "text")]
    path = source if source.endswith(".py") else None
    if not own:
        raise SpmdirError(
            "no placement is declared here; expected a class with a `text` that derives from spmdir.ShardPlacement, "
            "spmdir.PartialPlacement or spmdir.Placement",
            Location(source, 1, 1),
        )
    return Report(tuple(verdict for kind in own for verdict in _of_class(kind, path)))


def _of_class(kind: type[Placement], path: str | None) -> Iterator[Verdict]:
    if not attrs.has(kind):
        error = SpmdirError(
            f"{kind.__name__} is not an attrs class; decorate it with @attrs.frozen", _place(kind, path)
        )
        yield Verdict(kind.__name__, 0, 0, error)
        return
    try:
        found = instances(kind)  # pyright: ignore[reportArgumentType]
    except Exception as error:
        yield Verdict(
            kind.__name__, 0, 0, SpmdirError(f"{kind.__name__}: {_EXAMPLES}: {_told(error)}", _place(kind, path, error))
        )
        return
    for placement in found:
        yield _of_value(placement, path)


def _of_value(placement: Placement, path: str | None) -> Verdict:
    tried = examples = 0
    for law in LAWS:
        say("{}: law '{}'", placement, law.name)
        # What users draw afterwards does not depend on how often laws draw.
        with torch.random.fork_rng(()):
            count, broken = _try(law, placement, path)
        tried, examples = tried + bool(count), examples + count
        if broken is not None:
            return Verdict(_name(placement), tried, examples, broken)
    return Verdict(_name(placement), tried, examples)


def _try(law: Law, placement: Placement, path: str | None) -> tuple[int, SpmdirError | None]:
    """Return the number of examples, and what is wrong with the last of them."""
    count, example, fault, raised = 0, Example(), None, None
    try:
        for example in law.examples(placement):
            count += 1
            fault = law.fault(placement, example)
            if fault is not None:
                break
    except Exception as error:
        fault, raised = _told(error), error
    if fault is None:
        return count, None
    where = f" on {example}" if str(example) else ""
    message = f"{_name(placement)}: law '{law.name}' ({law.says}) is broken{where}: {fault}"
    return count, SpmdirError(message, _place(type(placement), path, raised))


def _told(error: Exception) -> str:
    return error.message if isinstance(error, SpmdirError) else f"raises {type(error).__name__}: {error}"


def _name(placement: Placement) -> str:
    try:
        return str(placement)
    except Exception:
        return type(placement).__name__


def _place(kind: type, path: str | None, error: Exception | None = None) -> Location | None:
    """Return the line of the file at `path`, or of the class's own, that raised `error`; else that of the class."""
    try:
        source, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return None
    if source is None:
        return None
    raised = line_in(source, error) if error else None
    return Location(path or source, raised or line, 1)
