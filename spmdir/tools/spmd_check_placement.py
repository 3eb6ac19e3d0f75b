"""`spmd check-placement`: check that the placements of a file obey the laws of placements."""

from __future__ import annotations

import argparse
import itertools

from spmdir.core.errors import SpmdirError, raise_all
from spmdir.tools.argument_parser import ArgumentParser

EXAMPLES = """\
examples:
  spmd check-placement cyclic.py          check every law; the exit status is 1 if a law is broken or not checked
  spmd check-placement cyclic.py --quick  check a few examples of each law, in seconds
  spmd check-placement --list-laws        list the laws

A placement class is checked with some values of its fields, or with its `examples`, a tuple of texts. Then it is
checked with other integers in its fields, some of them random.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    explained = "Check the placements of this module or .py file, which is executed."
    parser.add_argument("files", nargs="*", metavar="PLUGIN", help=explained)
    parser.add_argument("--quick", action="store_true", help="Check a few examples of each law and no random numbers.")
    explained = "Check only this law. The option may be repeated."
    parser.add_argument("--law", action="append", default=[], metavar="LAW", help=explained)
    parser.add_argument("--list-laws", action="store_true", help="List the laws and exit.")


def run(options: argparse.Namespace) -> int:
    """Print the laws, or check the placements of the files: print a line for each placement that obeys the laws.

    Returns: exit status 0.

    Raises:
        SpmdirErrors: the broken laws of all placements.
    """
    from spmdir.checking.placements import LAWS, Effort, verdicts_of

    if options.list_laws:
        width = max(len(law.name) for law in LAWS)
        print(*(f"{law.name:<{width}}  {law.statement}" for law in LAWS), sep="\n")
        return 0
    if not options.files:
        expected = "expected Python files or modules that declare placements"
        raise SpmdirError(f"no file was named; {expected}; see spmd check-placement --help")
    effort = Effort(options.quick, tuple(options.law))
    errors: list[SpmdirError] = []
    for verdict in itertools.chain.from_iterable(verdicts_of(path, effort) for path in options.files):
        errors += verdict.errors
        if not verdict.broken:
            print(verdict.summary, flush=True)
        if verdict.is_cut_off:
            break
    raise_all(errors)
    return 0
