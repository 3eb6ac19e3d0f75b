"""Reproducers: the module before a pass that failed, and the pipeline that fails on it, as one input of `spmd-opt`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spmdir.core.errors import Location, ParseError

if TYPE_CHECKING:
    from spmdir.pipeline.pipeline import Step

_CONFIGURATION = re.compile(r"^// configuration: -pass-pipeline='([^\n]*)'$", re.MULTILINE)


def reproducer(step: Step, text: str) -> str:
    """Return the input on which `--run-reproducer` runs the pass `step` on the module `text`."""
    return f"// configuration: -pass-pipeline='builtin.module({step})'\n\n{text}"


def pipeline_in(text: str, file: str) -> str:
    """Return the pipeline that the reproducer `text` names.

    Raises:
        ParseError: it names none.
    """
    found = _CONFIGURATION.search(text)
    if found is None:
        expected = "expected a line `// configuration: -pass-pipeline='…'`"
        raise ParseError(f"no reproducer: {expected}", Location(file, 1, 1))
    return found[1]
