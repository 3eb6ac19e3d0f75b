"""`spmd-check-placement`: try the laws of placements on those that a file declares."""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.core.errors import SpmdirErrors
from spmdir.tools.command import ArgumentParser, guarded

_DESCRIPTION = "Check the placements that plug-ins declare: every law, on many examples."
_EXAMPLES = """\
examples:
  spmd-check-placement cyclic.py         a line for each placement; status 1 if a law is broken
  spmd-check-placement --list-laws       the laws

A class is tried with some values of its fields, or with those of its `examples`, a tuple of texts.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    from spmdir.checking.placements import LAWS, check_plugin

    if options.list_laws:
        width = max(len(law.name) for law in LAWS)
        print(*(f"{law.name:<{width}}  {law.says}" for law in LAWS), sep="\n")
        return 0
    if not options.files:
        argument_parser().error("expected Python files or modules that declare placements")
    verdicts = [verdict for path in options.files for verdict in check_plugin(path).verdicts]
    for verdict in verdicts:
        if not verdict.broken:
            print(verdict, flush=True)
    broken = [verdict.broken for verdict in verdicts if verdict.broken]
    if broken:
        raise SpmdirErrors(broken)
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser(
        "spmd-check-placement",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("files", nargs="*", metavar="PLUGIN", help="a .py file, which is executed, or a module")
    parser.add_argument("--list-laws", action="store_true", help="show the laws")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
