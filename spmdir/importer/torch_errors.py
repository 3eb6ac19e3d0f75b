"""Errors of torch as errors of spmdir."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch import fx

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.importer.locations import node_location, source_line

_NEEDS_VALUES = {
    "DataDependentOutputException": "it reads a number out of a tensor; keep it a tensor, since ranks could disagree",
    "DynamicOutputShapeException": "the size of a result depends on data; use an op of fixed size, as torch.where",
}
"""Error of fake tensors, which have no values → what is said instead of its name."""


@contextmanager
def torch_errors(what: str, node: fx.Node | None = None) -> Iterator[None]:
    """Make whatever torch raises inside an UnsupportedError at `node`, which says `what` failed.

    What spmdir's own code raises stays as it is, so that it is seen as the bug that it is.
    """
    try:
        yield
    except (SpmdirError, Warning):
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_ours = frame.f_globals.get("__name__", "").partition(".")[0] == "spmdir"
        if is_ours and isinstance(error, (AssertionError, AttributeError, LookupError, NameError, TypeError)):
            raise
        reason = str(error).strip().partition("\n")[0]
        place = node_location(node) if node else source_line(str(error))  # TorchDynamo tells the line in its text
        told = _NEEDS_VALUES.get(type(error).__name__, type(error).__name__)
        raise UnsupportedError(f"{what}: {told}: {reason}", place) from error
