"""Scripts by which shells complete the options of a tool."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from importlib.util import find_spec

from spmdir.core.errors import SpmdirError

_FILES = ("FILE", "PATH", "PLUGIN")
"""What the values of options are called that are files."""

_INPUTS = ("input", "before", "after")
"""Positional arguments that are files."""


def completion_script(parser: argparse.ArgumentParser, passes: Sequence[str], shell: str) -> str:
    """Return the script for a shell; `parser` is of no use afterwards.

    Args:
        passes: those that the tool takes as flags.

    Raises:
        SpmdirError: shtab is not installed.
    """
    if find_spec("shtab") is None:
        raise SpmdirError("completion needs shtab, which is not installed; run pip install 'spmdir[completion]'")
    import shtab

    prefix = re.sub(r"\W", "_", parser.prog)
    pipeline = {
        "bash": f"_{prefix}_passes",
        "zsh": f"_values -s , pass {' '.join(passes)}",
        "tcsh": f"({' '.join(passes)})",
    }
    for action in parser._actions:
        if action.metavar in _FILES or (not action.option_strings and action.dest in _INPUTS):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's way to be told
        elif passes and action.metavar in ("PASS", "PIPELINE"):
            action.complete = pipeline  # type: ignore[attr-defined]
    for name in passes:
        parser.add_argument(f"--{name}", action="store_true", help=f"run the pass {name}")
    preamble = _names(prefix, passes) if shell == "bash" and passes else ""
    return shtab.complete(parser, shell, root_prefix=prefix, preamble=preamble)


def _names(prefix: str, passes: Sequence[str]) -> str:
    """Return a function of bash that completes the last name of a pipeline."""
    return (
        f"_{prefix}_passes() {{\n"
        '  local before="${1%"${1##*,}"}"\n'
        f'  compgen -W "{" ".join(passes)}" -P "$before" -- "${{1##*,}}"\n'
        "}"
    )
