"""Convert errors of torch to errors of spmdir."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch import fx

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.importer.locations import innermost_frame, node_location
from spmdir.torch_interop.logs import GUARDS, unlogged

_LOOP_OF_EXPERTS = re.compile(r'transformers/models/[^"\n]*", line [0-9]+, in forward\n[^\n]*\bexpert_(hit|mask|idx)\b')
"""The user's line in a traceback if tracing fails in the loop over the experts that are used."""

_VALUE_ERRORS = {
    "DataDependentOutputException": "it reads a number out of a tensor; keep it a tensor, since ranks could disagree",
    "DynamicOutputShapeException": "the size of a result depends on data; use an op of fixed size, as torch.where",
}
"""Error of an op that needs the values of fake tensors → the explanation that replaces its name."""


@contextmanager
def torch_errors(task: str, node: fx.Node | None = None) -> Iterator[None]:
    """Convert errors of torch in the context to an UnsupportedError at `node`, with the reason that torch gives.

    Errors of spmdir, warnings, and errors that indicate a bug of spmdir are not converted.

    Args:
        task: the start of the message, such as "the graph cannot be made functional".
    """
    try:
        with unlogged(GUARDS):
            yield
    except (SpmdirError, Warning):
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_spmdir = frame.f_globals.get("__name__", "").partition(".")[0] == "spmdir"
        if is_spmdir and isinstance(error, (AssertionError, AttributeError, LookupError, NameError, TypeError)):
            raise
        text = "".join(traceback.format_exception(error))
        reason = extract_reason(str(error))
        location = node_location(node) if node else innermost_frame(str(error))  # the text of TorchDynamo has the line
        if _LOOP_OF_EXPERTS.search(text):
            raise UnsupportedError(
                f"{task}: the model loops over the experts that are used, and their number depends on data; expected "
                'grouped products: set experts_implementation="grouped_mm" when you load the model, or call '
                'model.set_experts_implementation("grouped_mm")',
                location,
            ) from error
        explanation = _VALUE_ERRORS.get(type(error).__name__, type(error).__name__)
        raise UnsupportedError(f"{task}: {explanation}: {reason}", location) from error


_RAISED = re.compile(r"Observed exception\n.*raised exception (?P<error>[^\n]*)", re.DOTALL)
"""The message of TorchDynamo for an exception that the traced code raises."""

_CONSTANT = re.compile(r"\[ConstantVariable\(\w+: (.*)\)\]")
"""The argument of an exception in a message of torch 2.11."""

_NOISE = re.compile(
    r"For more (details|debugging|information)|For extended logs|For C\+\+|If you suspect the guard|Set TORCHDYNAMO"
    r"|Hint: (It may be possible to write Dynamo|This graph break is fundamental)|Developer debug context"
    r"|The error above occurred when calling torch\.export"
)
"""The starts of lines for developers of torch."""


def extract_reason(text: str) -> str:
    """Return the reasons and suggested fixes in the text of an error of torch.

    Lines for developers of torch are dropped, and so is the traceback of the user's code: the error has a location.

    Example:
        >>> extract_reason("Constraints violated (T)! For more information, run with TORCH_LOGS")
        'Constraints violated (T)!'
    """
    exception = _RAISED.search(text)
    if exception:
        return "the traced code raises " + _CONSTANT.sub(r"\1", exception["error"])
    lines = []
    for line in text.partition("\nfrom user code:")[0].strip().splitlines():
        start = _NOISE.search(line)
        text_of_line = line[: start.start()].rstrip() if start else line.rstrip()
        if text_of_line or (lines and lines[-1] and not start):
            lines.append(text_of_line)
    return "\n".join(lines).strip()
