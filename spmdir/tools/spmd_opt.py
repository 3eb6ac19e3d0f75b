"""`spmd-opt`: parse textual IR, run passes, and print the result."""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from spmdir.core.errors import SpmdirErrors
from spmdir.pipeline.pass_table import PASSES, PassTable
from spmdir.tools.argument_parser import ArgumentParser
from spmdir.tools.command import in_colour, read_text, run_in_process, run_tool, write_text

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

_DESCRIPTION = "Read SPMD IR as text, run passes over it in the order given, and print the resulting IR."
_EXAMPLES = """\
examples:
  spmd-opt in.mlir                                      parse, verify, print in canonical form
  spmd-opt in.mlir --propagate --insert-reshard         run two passes in the order of their flags
  spmd-opt in.mlir -p 'propagate,insert-reshard'        the same as one pipeline
  spmd-opt in.mlir --pass-pipeline='builtin.module(propagate,insert-reshard)'
  spmd-opt in.mlir --NAME="option=value other=1"        run a pass with options; NAME{option=value} in a pipeline
  spmd-opt in.mlir --propagate --print-ir-after-all     print the IR after each pass to stderr
  spmd-opt bad.mlir --verify-diagnostics                check `// expected-error@+1 {{part of it}}` comments
  cat in.mlir | spmd-opt - --propagate -o out.mlir      read stdin and write a file atomically
  spmd-opt in.mlir --propagate | spmd report -          report the costs of the result

Errors print as `file:line:col: error: …` and give exit status 1; then nothing is written.
"""

_MOVED_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "--cost-by": "spmd report --by",
        "--cost-report": "spmd report --view cost",
        "--cost-rows": "spmd report --rows",
        "--explain": "spmd explain",
        "--memory-report": "spmd report --view memory",
        "--print-timeline": "spmd report --view timeline",
        "--schedule-report": "spmd report --view schedule",
        "--summary": "spmd report --view summary",
        "--trace": "spmd report --format perfetto",
    }
)
"""Option of another command → that command, for the hint of the error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv`, by default the arguments of the process, and return the exit status."""
    if argv is None:
        # The IR lives until the process ends, so garbage collection would only cost time.
        gc.disable()
    return run_tool(_main, argv)


def _main(argv: Sequence[str]) -> int:
    """Print the help or the passes, check golden files, or run passes on the input; return the exit status."""
    plugins, unparsed = plugin_parser().parse_known_args(argv)
    passes = _passes(plugins.load_plugin)
    texts, unparsed = split_pass_flags(unparsed, passes)
    if "--help" in unparsed or "-h" in unparsed:  # the help lists the passes, so it reads their files
        print(argument_parser(epilog=f"{pass_summaries(passes)}\n\n{_EXAMPLES}").format_help(), end="")
        return 0
    options = argument_parser().parse(unparsed, tuple(passes), _MOVED_OPTIONS)
    if options.list_passes:
        print(pass_table(passes))
        return 0
    if options.golden:
        return _check_golden(options.golden, options.update_golden)
    text = _run(texts, plugins.load_plugin, options)
    if options.output in (None, "-") and in_colour(options.color, sys.stdout):
        from spmdir.tools.terminal import ir_in_colour

        text = ir_in_colour(text)
    write_text(options.output, text)
    return 0


def _run(texts: Sequence[str], plugins: Sequence[str], options: argparse.Namespace) -> str:
    """Run the passes on the input, and return the output.

    Args:
        texts: the pipelines on the command line, in order.
        plugins: the plug-ins to load.
    """
    # These imports load xDSL, which --help and --version do not need.
    from spmdir.pipeline.options import load_pass
    from spmdir.pipeline.pipeline import Pipeline, parse_steps
    from spmdir.tools.process_input import process
    from spmdir.tools.reproducer import pipeline_in

    steps = tuple(step for text in texts for step in parse_steps(text))
    pipeline = Pipeline(steps, plugins=plugins, topology=options.topology, costs=options.costs)
    for names in (*options.print_ir_before, *options.print_ir_after):
        for name in names.split(","):
            load_pass(name, pipeline.passes)  # raises for an unknown name
    text, file = read_text(options.input)
    if options.run_reproducer:
        steps = parse_steps(pipeline_in(text, file))
        pipeline = Pipeline(steps, plugins=plugins, topology=options.topology, costs=options.costs)
    if options.dump_pass_pipeline:
        print(f"builtin.module({pipeline})", file=sys.stderr)
    return process(text, file, pipeline, options)


def _passes(plugins: Sequence[str]) -> PassTable:
    """Return the passes of spmdir and of these plug-ins, which are loaded."""
    if not plugins:
        return PASSES
    from spmdir.pipeline.pipeline import Pipeline

    return Pipeline("", plugins=plugins).passes


def _check_golden(paths: Sequence[str], update: bool) -> int:
    """Check golden files, or update them; raise SpmdirErrors for files that differ."""
    from spmdir.tools.golden import check_files

    errors = list(check_files(paths, run_in_process, write_text if update else None))
    if errors:
        raise SpmdirErrors(errors)
    return 0


def plugin_parser() -> ArgumentParser:
    """Return the parser of --load-plugin. Plug-ins add passes, and so flags, so they are loaded first."""
    parser = ArgumentParser("spmd-opt", is_whole=False, add_help=False)
    parser.add_plugins()
    return parser


def argument_parser(epilog: str | None = None) -> ArgumentParser:
    """Return the parser of all options except pass flags."""
    parser = ArgumentParser(
        "spmd-opt",
        usage='spmd-opt [options] [--PASS[="option=value …"] …] [in.mlir]',
        description=_DESCRIPTION,
        epilog=epilog,
    )
    parser.add_input(is_optional=True)
    parser.add_argument("--list-passes", action="store_true", help="List the passes and their options.")
    parser.add_plugins()

    group = parser.add_argument_group("input")
    _add_flag(group, "split-input-file", "Treat each part between `// -----` lines as one program.", has_alias=False)
    explained = "Check the `// expected-error` comments of the input, and print no IR."
    _add_flag(group, "verify-diagnostics", explained, has_alias=False)
    explained = "Check these golden files, and those in these folders."
    group.add_argument("--golden", nargs="+", metavar="PATH", help=explained)
    _add_flag(group, "update-golden", "With --golden: write the current output as expectations.", has_alias=False)
    _add_flag(group, "run-reproducer", "Run the pipeline in the first line of the input.", has_alias=False)

    group = parser.add_argument_group("passes")
    explained = "Run the passes in this text, as in 'a,b{option=value}'."
    group.add_argument("-p", "--pass-pipeline", metavar="PIPELINE", help=explained)
    explained = "Verify the IR after each pass, or only after the last (default: each)."
    group.add_argument("--verify-each", action=argparse.BooleanOptionalAction, default=True, help=explained)
    explained = "Check that input and result, printed in custom and generic form, parse to equal modules."
    _add_flag(group, "verify-roundtrip", explained, has_alias=False)
    _add_flag(group, "dump-pass-pipeline", "Print the pipeline as text to stderr.", has_alias=False)
    explained = "If a pass fails, write the module before it and the pass to FILE."
    group.add_argument("--mlir-pass-pipeline-crash-reproducer", dest="reproducer", metavar="FILE", help=explained)

    group = parser.add_argument_group("output")
    parser.add_color()
    parser.add_output()
    places = "a value %NAME, a module path, a glob or file.py:12. The option may be repeated."
    explained = f"Print only the ops of PLACE, as a function: {places}".replace("%", "%%")
    group.add_argument("--only", action="append", default=[], metavar="PLACE", help=explained)
    _add_flag(group, "print-op-generic", "Print the generic form.")
    _add_flag(group, "print-debuginfo", "Print locations.", dest="debuginfo")
    for when in ("before", "after"):
        _add_flag(group, f"print-ir-{when}-all", f"Print the IR {when} each pass to stderr.")
        options = (f"--print-ir-{when}", f"--mlir-print-ir-{when}")
        explained = f"Print the IR {when} this pass to stderr. Several names are separated by commas."
        group.add_argument(*options, action="append", default=[], metavar="PASS", help=explained)
    _add_flag(group, "print-ir-after-change", "Print the IR after each pass that changes it to stderr.")
    _add_flag(group, "timing", "Print the wall time of parsing, of each pass and of printing to stderr.")
    parser.add_machine()
    return parser


def _add_flag(
    group: argparse._ArgumentGroup, name: str, explained: str, has_alias: bool = True, **options: Any
) -> None:
    """Add the flag `name`, and an alias with the prefix of MLIR's tools."""
    names = (f"--{name}", f"--mlir-{name}") if has_alias else (f"--{name}",)
    group.add_argument(*names, action="store_true", help=explained, **options)


def split_pass_flags(argv: Sequence[str], passes: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the texts of pipelines in pass flags, `-p` and `--pass-pipeline`, in order, and the other arguments.

    A flag is `--NAME`, `--NAME=options` or `--NAME{options}` for a NAME in `passes`.
    """
    pipelines, other_arguments, arguments = [], [], iter(argv)
    for argument in arguments:
        flag = re.match(r"--([\w-]+)(?:=|(?=\{)|\Z)", argument)
        if flag and flag[1] in passes:
            options = argument[flag.end() :]
            has_braces = not options or options.startswith("{")
            pipelines.append(flag[1] + (options if has_braces else f"{{{options}}}"))
        elif argument.startswith("--pass-pipeline="):
            pipelines.append(argument.partition("=")[2])
        elif argument in ("-p", "--pass-pipeline"):
            pipeline = next(arguments, None)
            if pipeline is None:
                other_arguments.append(argument)  # the parser reports the missing value
            else:
                pipelines.append(pipeline)
        else:
            other_arguments.append(argument)
    return pipelines, other_arguments


def pass_summaries(passes: PassTable) -> str:
    """Return the passes with their descriptions, one on each line."""
    lines = [f"  --{name:<22}{_summary(entry)}" for name, entry in passes.items()]
    return "\n".join(["passes (--list-passes prints their options):", *lines])


def pass_table(passes: PassTable) -> str:
    """Return the passes with their descriptions, stages and options."""
    from spmdir.pipeline.options import describe

    lines = ["passes:"]
    for name in passes:
        summary, options = describe(name, passes)
        lines += [f"  --{name:<22}{summary}", *(f"{'':28}{option}" for option in options)]
    return "\n".join(lines)


def _summary(entry: str | type) -> str:
    """Return the first line of a pass's docstring. It is read from the source: importing the passes is slow."""
    if isinstance(entry, type):
        return (entry.__doc__ or "").strip().partition("\n")[0]
    module_name, _, name = entry.partition(":")
    spec = find_spec(module_name)
    source = cast("InspectLoader", spec.loader).get_source(module_name) if spec else None
    match = re.search(rf'^class {name}\(.*\):\n +"""(.*?)(?:"""|$)', source or "", re.MULTILINE)
    return match[1] if match else ""


if __name__ == "__main__":
    raise SystemExit(main())
