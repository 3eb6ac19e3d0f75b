"""`spmd-check-placement`: try the laws of placements on those that a file declares."""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.core.errors import SpmdirError, raise_all
from spmdir.tools.command import ArgumentParser, guarded

_DESCRIPTION = "Check the placements that plug-ins declare: every law, on many examples."
_EXAMPLES = """\
examples:
  spmd-check-placement cyclic.py         a line for each placement; status 1 if a law is broken or not checked
  spmd-check-placement cyclic.py --quick a few examples of each law, in seconds
  spmd-check-placement --list-laws       the laws

A class is tried with some values of its fields, or with those of its `examples`, a tuple of texts; then with other
integers in its fields, some of them drawn.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    from spmdir.checking.placements import LAWS, Effort, verdicts_of

    if options.list_laws:
        width = max(len(law.name) for law in LAWS)
        print(*(f"{law.name:<{width}}  {law.says}" for law in LAWS), sep="\n")
        return 0
    if not options.files:
        argument_parser().error("expected Python files or modules that declare placements")
    effort = Effort(options.quick, tuple(options.law))
    errors: list[SpmdirError] = []
    for verdict in (verdict for path in options.files for verdict in verdicts_of(path, effort)):
        errors += verdict.errors
        if not verdict.broken:
            print(verdict.summary, flush=True)
        if verdict.cut_off:
            break
    raise_all(errors)
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser(
        "spmd-check-placement",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("files", nargs="*", metavar="PLUGIN", help="a .py file, which is executed, or a module")
    parser.add_argument("--quick", action="store_true", help="try a few examples of each law, and no drawn numbers")
    parser.add_argument(
        "--law", action="append", default=[], metavar="LAW", help="try this law alone; can be given several times"
    )
    parser.add_argument("--list-laws", action="store_true", help="show the laws")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
