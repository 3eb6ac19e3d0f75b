"""`spmd-diff`: what differs between two partitioned programs, by meaning."""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.core.errors import SpmdirError
from spmdir.tools.command import ArgumentParser, guarded, print_with_axes, read_text

_DESCRIPTION = "Print what differs between two partitioned programs: time, bytes, memory, collectives, shardings."
_EXAMPLES = """\
examples:
  spmd-diff before.mlir after.mlir

Values go by their names. The programs may be at any stage between propagate and localize, each at another.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    if options.before == options.after == "-":
        raise SpmdirError("both programs are stdin, which holds one; give a file for one of them")
    before, after = (read_text(path) for path in (options.before, options.after))
    from spmdir.dialects import ir
    from spmdir.explanation.difference import diff
    from spmdir.pipeline.pipeline import STANDARD, Pipeline

    machine = {"topology": options.topology, "costs": options.costs}
    pipeline = Pipeline(options.pass_pipeline or STANDARD, plugins=options.load_plugin, **machine)
    with pipeline.rules:
        one, other = ir.parse(*before), ir.parse(*after)
        print_with_axes(str(diff(one, other, pipeline)), ir.mesh(one).axis_names, options.color)
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-diff", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("before", help="file of textual IR; - is stdin")
    parser.add_argument("after", help="file of textual IR; - is stdin")
    parser.add_color()
    parser.add_machine()
    parser.add_pipeline()
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
