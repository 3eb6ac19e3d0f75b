"""Scripts with which shells complete the subcommands and options of a tool."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec

from spmdir.core.errors import SpmdirError

_FILES = ("FILE", "PATH", "PLUGIN")
"""The metavariables of options whose values are files."""

_INPUTS = ("input", "before", "after")
"""The positional arguments that are files."""


def completion_script(parser: argparse.ArgumentParser, passes: Sequence[str], shell: str) -> str:
    """Return the script for a shell. `parser` is changed, and cannot be used afterwards.

    Args:
        passes: the passes that the tool accepts as flags.

    Raises:
        SpmdirError: shtab is not installed.
    """
    if find_spec("shtab") is None:
        raise SpmdirError(
            "the package shtab is missing; expected it for shell completion: run pip install 'spmdir[completion]'"
        )
    import shtab

    prefix = re.sub(r"\W", "_", parser.prog)
    pipeline = {
        "bash": f"_{prefix}_passes",
        "zsh": f"_values -s , pass {' '.join(passes)}",
        "tcsh": f"({' '.join(passes)})",
    }
    for action in _all_arguments(parser):
        if action.metavar in _FILES or (not action.option_strings and action.dest in _INPUTS):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads this attribute
        elif passes and action.metavar in ("PASS", "PIPELINE"):
            action.complete = pipeline  # type: ignore[attr-defined]
    for name in passes:
        parser.add_argument(f"--{name}", action="store_true", help=f"run the pass {name}")
    preamble = _pipeline_function(prefix, passes) if shell == "bash" and passes else ""
    return shtab.complete(parser, shell, root_prefix=prefix, preamble=preamble)


def _all_arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        choices = action.choices.values() if isinstance(action.choices, Mapping) else ()
        for subparser in choices:  # those of the argument SUBCOMMAND are parsers
            if isinstance(subparser, argparse.ArgumentParser):
                yield from _all_arguments(subparser)


def _pipeline_function(prefix: str, passes: Sequence[str]) -> str:
    """Return a bash function that completes the last name of a pipeline."""
    return (
        f"_{prefix}_passes() {{\n"
        '  local before="${1%"${1##*,}"}"\n'
        f'  compgen -W "{" ".join(passes)}" -P "$before" -- "${{1##*,}}"\n'
        "}"
    )
