"""Errors of torch as errors of spmdir."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch import fx

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.importer.locations import node_location, source_line
from spmdir.torch_interop.logs import GUARDS, unlogged

_NEEDS_VALUES = {
    "DataDependentOutputException": "it reads a number out of a tensor; keep it a tensor, since ranks could disagree",
    "DynamicOutputShapeException": "the size of a result depends on data; use an op of fixed size, as torch.where",
}
"""Error of fake tensors, which have no values → what is said instead of its name."""


@contextmanager
def torch_errors(what: str, node: fx.Node | None = None) -> Iterator[None]:
    """Make whatever torch raises inside an UnsupportedError at `node`, which says `what` failed and torch's reasons.

    What spmdir's own code raises stays as it is, so that it is seen as the bug that it is.
    """
    try:
        with unlogged(GUARDS):
            yield
    except (SpmdirError, Warning):
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_ours = frame.f_globals.get("__name__", "").partition(".")[0] == "spmdir"
        if is_ours and isinstance(error, (AssertionError, AttributeError, LookupError, NameError, TypeError)):
            raise
        reason = essential_text(str(error))
        place = node_location(node) if node else source_line(str(error))  # TorchDynamo tells the line in its text
        told = _NEEDS_VALUES.get(type(error).__name__, type(error).__name__)
        raise UnsupportedError(f"{what}: {told}: {reason}", place) from error


_RAISED = re.compile(r"Observed exception\n.*raised exception (?P<error>[^\n]*)", re.DOTALL)
"""What TorchDynamo says of an exception that the traced code raises."""

_CONSTANT = re.compile(r"\[ConstantVariable\(\w+: (.*)\)\]")
"""How torch 2.11 writes the argument of an exception."""

_NOISE = re.compile(
    r"For more (details|debugging|information)|For extended logs|For C\+\+|If you suspect the guard|Set TORCHDYNAMO"
    r"|Hint: (It may be possible to write Dynamo|This graph break is fundamental)|Developer debug context"
    r"|The error above occurred when calling torch\.export"
)
"""How lines begin that are for developers of torch."""


def essential_text(text: str) -> str:
    """Return what an error of torch says to the author of a model: its reasons and its suggested fixes, all lines.

    The traceback of the user's code is left out, since the error has a location of its own.

    Example:
        >>> essential_text("Constraints violated (T)! For more information, run with TORCH_LOGS")
        'Constraints violated (T)!'
    """
    raised = _RAISED.search(text)
    if raised:
        return "the traced code raises " + _CONSTANT.sub(r"\1", raised["error"])
    lines = []
    for line in text.partition("\nfrom user code:")[0].strip().splitlines():
        start = _NOISE.search(line)
        kept = line[: start.start()].rstrip() if start else line.rstrip()
        if kept or (lines and lines[-1] and not start):
            lines.append(kept)
    return "\n".join(lines).strip()
