"""`spmd explain`: explain the shardings and reshards of values."""

from __future__ import annotations

import argparse

from spmdir.core.errors import shown
from spmdir.tools.argument_parser import ArgumentParser, number_parser, pipeline_of
from spmdir.tools.command import print_with_axes, read_text

EXAMPLES = """\
examples:
  spmd explain in.mlir %mm                     the value %mm of the program text
  spmd explain in.mlir --at model.py:12        the values that a line of the model's source computes
  spmd explain in.mlir --at 'layers.0.mlp*'    the values of a module, given by its path or a glob
  spmd explain in.mlir --most 5                the five values whose reshards take the most time
  spmd explain in.mlir --set '%w = tp: S(1)'   the effect of sharding %w this way
  spmd explain in.mlir --drop-annotation %x    the effect of removing the annotation of %x

The program is an input of propagate. Its shardings are annotations of the user. "Next best" is the decision
when the chosen strategy is not allowed, in all equal layers, with the time of the whole program for that decision.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    parser.add_input()
    parser.add_argument("values", nargs="*", metavar="VALUE", help="Explain the value of this name, such as %%mm.")
    places = "Explain the values of this source line (file.py:12), module path or glob. The option may be repeated."
    parser.add_argument("--at", action="append", default=[], metavar="PLACE", help=places)
    most = "Explain at most N values of each place (default: 3)."
    parser.add_argument("--most", type=number_parser("values", 1, 10**6), default=3, metavar="N", help=most)
    group = parser.add_argument_group("what if", "Decide again with a change, and print the differences.")
    for name, explained in (
        ("set", "Give the values of PLACE this sharding."),
        ("forbid", "Forbid these placements for the values of PLACE."),
    ):
        group.add_argument(
            f"--{name}", action="append", default=[], type=_parse_change, metavar="'PLACE = SHARDING'", help=explained
        )
    dropped = "Ignore the annotation of the values of PLACE."
    group.add_argument("--drop-annotation", action="append", default=[], metavar="PLACE", help=dropped)
    parser.add_color()
    parser.add_machine()
    parser.add_pipeline()


def run(options: argparse.Namespace) -> int:
    """Print the explanations, or the differences after the changes."""
    text, file = read_text(options.input)
    from spmdir.dialects import ir
    from spmdir.explanation.decided_program import DecidedProgram
    from spmdir.explanation.explain import explain_values
    from spmdir.explanation.what_if import what_if

    pipeline = pipeline_of(options)
    with pipeline.rules:
        module = ir.parse(text, file)
        if options.set or options.forbid or options.drop_annotation:
            changes = {"forbid": dict(options.forbid), "drop_annotations": options.drop_annotation}
            answers = [what_if(module, dict(options.set), **changes, pipeline=pipeline)]
        else:
            program = DecidedProgram(module, pipeline)
            places = [*options.values, *options.at] or ["*"]
            answers = [explain_values(program, place, options.most) for place in places]
        print_with_axes("\n\n".join(map(str, answers)), ir.mesh(module).axis_names, options.color)
    return 0


def _parse_change(text: str) -> tuple[str, str]:
    """Return the place and the sharding in `%x = dp: S(0)`, for argparse."""
    place, equals, sharding = text.partition("=")
    if not equals or not place.strip():
        raise argparse.ArgumentTypeError(
            f"invalid change {shown(text)}; expected 'PLACE = SHARDING', as in '%x = dp: S(0)'"
        )
    return place.strip(), sharding.strip()
