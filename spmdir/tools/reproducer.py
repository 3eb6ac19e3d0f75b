"""Reproducers: an input of `spmd-opt` with the module before a failed pass, and a pipeline of this pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spmdir.core.errors import Location, ParseError

if TYPE_CHECKING:
    from spmdir.pipeline.pipeline import Step

_CONFIGURATION = re.compile(r"^// configuration: -pass-pipeline='([^\n]*)'$", re.MULTILINE)


def reproducer(step: Step, text: str) -> str:
    """Return an input for `--run-reproducer` that runs the pass `step` on the module `text`."""
    return f"// configuration: -pass-pipeline='builtin.module({step})'\n\n{text}"


def pipeline_in(text: str, file: str) -> str:
    """Return the pipeline in the first lines of the reproducer `text`.

    Raises:
        ParseError: there is no pipeline.
    """
    match = _CONFIGURATION.search(text)
    if match is None:
        expected = "expected a line `// configuration: -pass-pipeline='…'`"
        raise ParseError(f"the input is not a reproducer; {expected}", Location(file, 1, 1))
    return match[1]
