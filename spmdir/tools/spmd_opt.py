"""`spmd-opt`: read textual IR, run passes over it, print it."""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from spmdir.core.errors import SpmdirErrors
from spmdir.pipeline.pass_table import PASSES, PassTable
from spmdir.report.cost_rows import ROWS
from spmdir.tools.command import ArgumentParser, captured, guarded, in_colour, read_text, rows, write_text

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

_DESCRIPTION = "Read SPMD IR as text, run passes over it in the order given, and print the result."
_EXAMPLES = """\
examples:
  spmd-opt in.mlir                                      parse, verify, print in canonical form
  spmd-opt in.mlir --propagate --insert-reshard         passes run in the order of their flags
  spmd-opt in.mlir -p 'propagate,insert-reshard'        the same, as one pipeline
  spmd-opt in.mlir --pass-pipeline='builtin.module(propagate,insert-reshard)'
  spmd-opt in.mlir --NAME="option=value other=1"        a pass with options; NAME{option=value} in a pipeline
  spmd-opt in.mlir --propagate --print-ir-after-all     what each pass made, on stderr
  spmd-opt bad.mlir --verify-diagnostics                check `// expected-error@+1 {{part of it}}` comments
  cat in.mlir | spmd-opt - --propagate -o out.mlir      stdin to a file, which is written atomically

Errors print as `file:line:col: error: …` and give exit status 1, with nothing written.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    if argv is None:
        # The process is ours, and its IR lives until it ends: collecting garbage only costs time.
        gc.disable()
    return guarded(_main, argv)


def run_on(arguments: Sequence[str], text: str) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of the tool in this process; the input that `arguments` name is `text`."""
    return captured(lambda: guarded(lambda argv: _main(argv, lambda path: (text, path)), arguments))


def _main(argv: Sequence[str], read: Callable[[str], tuple[str, str]] = read_text) -> int:
    plugins, rest = plugin_parser().parse_known_args(argv)
    passes = _passes(plugins.load_plugin)
    texts, rest = split_pass_flags(rest, passes)
    if "--help" in rest or "-h" in rest:
        print(argument_parser(epilog=f"{pass_summaries(passes)}\n\n{_EXAMPLES}").format_help(), end="")
        return 0
    options = argument_parser().parse(rest, tuple(passes))
    if options.list_passes:
        print(pass_table(passes))
        return 0
    if options.golden:
        return _check_golden(options.golden, options.update_golden)
    text = _run(texts, plugins.load_plugin, options, read)
    if options.output in (None, "-") and in_colour(options.color, sys.stdout):
        from spmdir.tools.terminal import ir_in_colour

        text = ir_in_colour(text)
    write_text(options.output, text)
    return 0


def _run(
    texts: Sequence[str], plugins: Sequence[str], options: argparse.Namespace, read: Callable[[str], tuple[str, str]]
) -> str:
    # From here on xDSL is needed, which --help and --version do without.
    from spmdir.pipeline.options import load_pass
    from spmdir.pipeline.pipeline import Pipeline, parse_steps
    from spmdir.tools.process_input import process
    from spmdir.tools.reproducer import pipeline_in

    steps = tuple(step for text in texts for step in parse_steps(text))
    pipeline = Pipeline(steps, plugins=plugins, topology=options.topology, costs=options.costs)
    for name in (name for names in (*options.print_ir_before, *options.print_ir_after) for name in names.split(",")):
        load_pass(name, pipeline.passes)
    text, file = read(options.input)
    if options.run_reproducer:
        pipeline = Pipeline(
            parse_steps(pipeline_in(text, file)), plugins=plugins, topology=options.topology, costs=options.costs
        )
    if options.dump_pass_pipeline:
        print(f"builtin.module({pipeline})", file=sys.stderr)
    return process(text, file, pipeline, options)


def _passes(plugins: Sequence[str]) -> PassTable:
    if not plugins:
        return PASSES
    from spmdir.pipeline.pipeline import Pipeline

    return Pipeline("", plugins=plugins).passes


def _check_golden(paths: Sequence[str], update: bool) -> int:
    from spmdir.tools.golden import check_files

    errors = list(check_files(paths, run_on, write_text if update else None))
    if errors:
        raise SpmdirErrors(errors)
    return 0


def plugin_parser() -> ArgumentParser:
    """Return the options that are read before all others, since plug-ins bring passes and so flags."""
    parser = ArgumentParser("spmd-opt", completes=False, add_help=False)
    parser.add_plugins()
    return parser


def argument_parser(epilog: str | None = None) -> ArgumentParser:
    """Return the options other than pass flags."""
    parser = ArgumentParser(
        "spmd-opt",
        usage='spmd-opt [options] [--PASS[="option=value …"] …] [in.mlir]',
        description=_DESCRIPTION,
        epilog=epilog,
        add_help=False,
    )
    parser.add_argument("input", nargs="?", default="-", help="file of textual IR; - or nothing is stdin")
    parser.add_argument("-h", "--help", action="store_true", help="show this text")
    parser.add_argument("--list-passes", action="store_true", help="show the passes and their options")
    parser.add_plugins()

    group = parser.add_argument_group("input")
    group.add_argument("--split-input-file", action="store_true", help="treat parts between `// -----` lines alone")
    group.add_argument("--verify-diagnostics", action="store_true", help="check expected-error comments; print no IR")
    group.add_argument("--golden", nargs="+", metavar="PATH", help="check golden files, also those in folders")
    group.add_argument("--update-golden", action="store_true", help="with --golden: write what is printed now")
    group.add_argument("--run-reproducer", action="store_true", help="run the pipeline that the input names")

    group = parser.add_argument_group("passes")
    group.add_argument("-p", "--pass-pipeline", metavar="PIPELINE", help="passes as text: 'a,b{option=value}'")
    group.add_argument(
        "--verify-each",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="verify after each pass, which is the default",
    )
    group.add_argument("--verify-roundtrip", action="store_true", help="check that input and result are read back")
    group.add_argument("--dump-pass-pipeline", action="store_true", help="print the pipeline to stderr")
    group.add_argument(
        "--mlir-pass-pipeline-crash-reproducer",
        dest="reproducer",
        metavar="FILE",
        help="write the module before a pass that fails",
    )

    group = parser.add_argument_group("output")
    parser.add_color()
    group.add_argument("-o", dest="output", metavar="FILE", help="write there instead of stdout")
    explained = "print these ops alone, as a function: %NAME, the path of a module, a glob, file.py:12"
    group.add_argument("--only", action="append", default=[], metavar="PLACE", help=explained.replace("%", "%%"))
    explained = "print what the result is, in place of it: its mesh, parameters, layers, collectives"
    group.add_argument("--summary", action="store_true", help=explained)
    group.add_argument("--print-op-generic", "--mlir-print-op-generic", action="store_true", help="print generic form")
    _add_flag(group, "print-debuginfo", "print locations", dest="debuginfo")
    for when in ("before", "after"):
        _add_flag(group, f"print-ir-{when}-all", f"print the IR {when} each pass, to stderr")
        options = (f"--print-ir-{when}", f"--mlir-print-ir-{when}")
        explained = f"print the IR {when} these passes, to stderr"
        group.add_argument(*options, action="append", default=[], metavar="PASS", help=explained)
    _add_flag(group, "print-ir-after-change", "print the IR after each pass that changes it, to stderr")
    _add_flag(group, "timing", "print the seconds of each stage, to stderr")
    explained = "the machine, for passes that price and for --cost-report: a name or a .toml file"
    group.add_argument("--topology", metavar="NAME", help=explained)
    group.add_argument("--costs", metavar="FILE", help="measured times, for passes that price and for --cost-report")
    explained = "print what the result sends and computes, its objective and certificate, to stderr"
    group.add_argument("--cost-report", action="store_true", help=explained)
    explained = "print what costs most instead, ops or lines of source, and what bounds each, to stderr"
    group.add_argument("--cost-by", choices=("op", "line"), help=explained)
    explained = f"how many rows --cost-by prints, or all (default {ROWS})"
    group.add_argument("--cost-rows", type=rows, default=ROWS, metavar="N", help=explained)
    explained = "print why a value is sharded and resharded as propagate decides, to stderr; see spmd-explain"
    group.add_argument("--explain", action="append", default=[], metavar="%NAME", help=explained.replace("%", "%%"))
    group.add_argument("--memory-report", action="store_true", help="print the memory of a rank, to stderr")
    explained = "print how long a rank takes in the order of the result, and what is exposed, to stderr"
    group.add_argument("--schedule-report", action="store_true", help=explained)
    explained = "print when each op runs and each transfer is under way, to stderr"
    group.add_argument("--print-timeline", action="store_true", help=explained)
    group.add_argument("--trace", metavar="FILE", help="write that as JSON for Perfetto, ui.perfetto.dev")
    return parser


def _add_flag(group: argparse._ArgumentGroup, name: str, explained: str, **options: Any) -> None:
    """Add the flag `name` in our spelling and in MLIR's."""
    group.add_argument(f"--{name}", f"--mlir-{name}", action="store_true", help=explained, **options)


def split_pass_flags(argv: Sequence[str], passes: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the pipelines that pass flags, `-p` and `--pass-pipeline` spell, in order, and the other arguments.

    A flag is `--NAME`, `--NAME=options` or `--NAME{options}` for a NAME in `passes`.
    """
    pipelines, rest, arguments = [], [], iter(argv)
    for argument in arguments:
        flag = re.match(r"--([\w-]+)(?:=|(?=\{)|\Z)", argument)
        if flag and flag[1] in passes:
            options = argument[flag.end() :]
            pipelines.append(flag[1] + (options if options.startswith("{") or not options else f"{{{options}}}"))
        elif argument.startswith("--pass-pipeline="):
            pipelines.append(argument.partition("=")[2])
        elif argument in ("-p", "--pass-pipeline") and (pipeline := next(arguments, None)) is not None:
            pipelines.append(pipeline)
        else:
            rest.append(argument)
    return pipelines, rest


def pass_summaries(passes: PassTable) -> str:
    """Return the passes, one a line, each with what it does."""
    lines = [f"  --{name:<22}{_summary(entry)}" for name, entry in passes.items()]
    return "\n".join(["passes, whose options --list-passes shows:", *lines])


def pass_table(passes: PassTable) -> str:
    """Return the passes, one a line, each followed by its options."""
    from spmdir.pipeline.options import describe

    lines = ["passes:"]
    for name in passes:
        summary, options = describe(name, passes)
        lines += [f"  --{name:<22}{summary}", *(f"{'':28}{option}" for option in options)]
    return "\n".join(lines)


def _summary(entry: str | type) -> str:
    """Return the first line of a pass's docstring; from its source, since to import passes takes long."""
    if isinstance(entry, type):
        return (entry.__doc__ or "").strip().partition("\n")[0]
    home, _, name = entry.partition(":")
    spec = find_spec(home)
    source = cast("InspectLoader", spec.loader).get_source(home) if spec else None
    found = re.search(rf'^class {name}\(.*\):\n +"""(.*?)(?:"""|$)', source or "", re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    raise SystemExit(main())
