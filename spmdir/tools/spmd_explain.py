"""`spmd-explain`: why values are sharded and resharded as they are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from spmdir.core.errors import shown
from spmdir.tools.command import ArgumentParser, count, guarded, print_with_axes, read_text

_DESCRIPTION = "Decide the shardings of a program, and explain those of the values that are asked about."
_EXAMPLES = """\
examples:
  spmd-explain in.mlir %mm                     a value, by its name in the text
  spmd-explain in.mlir --at model.py:12        what a line of the source makes
  spmd-explain in.mlir --at 'layers.0.mlp*'    what a module makes, by its path or a glob
  spmd-explain in.mlir --most 5                the five values whose reshards take most time
  spmd-explain in.mlir --set '%w = tp: S(1)'   what differs if the value is sharded so
  spmd-explain in.mlir --drop-annotation %x    what differs without this annotation

The program is read as it is before propagate: what is annotated is taken for yours. "Next best" is what is decided
if the strategy before it is not allowed, in all equal layers; the time is that of the program so.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    text, file = read_text(options.input)
    from spmdir.dialects import ir
    from spmdir.explanation.decided import DecidedProgram
    from spmdir.explanation.explain import explanations
    from spmdir.explanation.what_if import what_if
    from spmdir.pipeline.pipeline import STANDARD, Pipeline

    pipeline = Pipeline(
        options.pass_pipeline or STANDARD, plugins=options.load_plugin, topology=options.topology, costs=options.costs
    )
    with pipeline.rules:
        module = ir.parse(text, file)
        if options.set or options.forbid or options.drop_annotation:
            changes = {"forbid": dict(options.forbid), "drop_annotations": options.drop_annotation}
            answers = [what_if(module, dict(options.set), **changes, pipeline=pipeline)]
        else:
            program = DecidedProgram(module, pipeline)
            asked = [*options.values, *options.at] or ["*"]
            answers = [explanations(program, at, options.most) for at in asked]
        print_with_axes("\n\n".join(map(str, answers)), ir.mesh(module).axis_names, options.color)
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-explain", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("input", help="file of textual IR; - is stdin")
    parser.add_argument("values", nargs="*", metavar="VALUE", help="names of values, as %%mm")
    parser.add_argument(
        "--at", action="append", default=[], metavar="PLACE", help="a line, file.py:12, the path of a module, or a glob"
    )
    number, explained = count("values", 1, 10**6), "how many values of a place (default 3)"
    parser.add_argument("--most", type=number, default=3, metavar="N", help=explained)
    group = parser.add_argument_group("what if", "decide again, and print what differs instead")
    for name, explained in (("set", "give what is there a sharding"), ("forbid", "do not place what is there so")):
        group.add_argument(
            f"--{name}", action="append", default=[], type=_change, metavar="'PLACE = SHARDING'", help=explained
        )
    group.add_argument("--drop-annotation", action="append", default=[], metavar="PLACE", help="leave it to the search")
    parser.add_color()
    parser.add_machine()
    parser.add_pipeline()
    return parser


def _change(text: str) -> tuple[str, str]:
    """Return the place and the sharding in `%x = dp: S(0)`."""
    place, is_given, sharding = text.partition("=")
    if not is_given or not place.strip():
        raise argparse.ArgumentTypeError(f"{shown(text)} is no change; expected as in '%x = dp: S(0)'")
    return place.strip(), sharding.strip()


if __name__ == "__main__":
    raise SystemExit(main())
