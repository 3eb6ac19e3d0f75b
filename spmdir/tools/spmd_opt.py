"""`spmd-opt`: read textual IR, run passes over it, print it."""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from spmdir.core.errors import SpmdirError, SpmdirErrors, SpmdirWarning
from spmdir.passes import PassTable
from spmdir.passes.options import describe
from spmdir.passes.pipeline import Pipeline, run_passes
from spmdir.tools.command import ArgumentParser, captured, flat, guarded, read_text, shown_warnings, write_text
from spmdir.tools.diagnostics import expectations, mismatches
from spmdir.tools.input_parts import SPLIT, parts_of

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

_DESCRIPTION = "Read SPMD IR as text, run passes over it in the order given, and print the result."
_EXAMPLES = """\
examples:
  spmd-opt in.mlir                                      parse, verify, print in canonical form
  spmd-opt in.mlir --propagate --insert-reshard         passes run in the order of their flags
  spmd-opt in.mlir -p 'propagate,insert-reshard'        the same, as one pipeline
  spmd-opt in.mlir --NAME="option=value other=1"        a pass with options; NAME{option=value} in a pipeline
  spmd-opt in.mlir --propagate --print-ir-after-all     what each pass made, on stderr
  spmd-opt bad.mlir --verify-diagnostics                check `// expected-error@+1 {{part of it}}` comments
  cat in.mlir | spmd-opt - --propagate -o out.mlir      stdin to a file, which is written whole or not at all

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
    passes = Pipeline("", plugins=plugins.load_plugin).passes
    pipeline, rest = split_pass_flags(rest, passes)
    if "--help" in rest or "-h" in rest:
        print(argument_parser(epilog=f"{pass_table(passes)}\n\n{_EXAMPLES}").format_help(), end="")
        return 0
    options = argument_parser().parse(rest, [f"--{name}" for name in passes])
    if options.list_passes:
        print(pass_table(passes))
        return 0
    if options.golden:
        return _check_golden(options.golden, options.update_golden)
    pipeline = Pipeline(pipeline, plugins=plugins.load_plugin)
    write_text(options.output, process(*read(options.input), pipeline, options))
    return 0


def _check_golden(paths: Sequence[str], update: bool) -> int:
    from spmdir.tools.golden import check_files

    errors = list(check_files(paths, run_on, write_text if update else None))
    if errors:
        raise SpmdirErrors(errors)
    return 0


def plugin_parser() -> ArgumentParser:
    """The options that are read before all others, since plug-ins bring passes and so flags."""
    parser = ArgumentParser("spmd-opt", allow_abbrev=False, add_help=False)
    parser.add_plugins()
    return parser


def argument_parser(epilog: str | None = None) -> ArgumentParser:
    """The options other than pass flags."""
    parser = ArgumentParser(
        "spmd-opt",
        parents=[plugin_parser()],
        usage='spmd-opt [options] [--PASS[="option=value …"] …] [in.mlir]',
        description=_DESCRIPTION,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("input", nargs="?", default="-", help="file of textual IR; - or nothing is stdin")
    parser.add_argument("-h", "--help", action="store_true", help="show this text")
    parser.add_argument("--list-passes", action="store_true", help="show the passes and their options")

    group = parser.add_argument_group("input")
    group.add_argument("--split-input-file", action="store_true", help="treat parts between `// -----` lines alone")
    group.add_argument("--verify-diagnostics", action="store_true", help="check expected-error comments; print no IR")

    group.add_argument("--golden", nargs="+", metavar="PATH", help="check golden files, also those in folders")
    group.add_argument("--update-golden", action="store_true", help="with --golden: write what is printed now")

    group = parser.add_argument_group("passes")
    group.add_argument("-p", dest="pipeline", metavar="PIPELINE", help="passes as text: 'a,b{option=value}'")
    group.add_argument("--verify-each", action="store_true", help="verify after every pass, not only after the last")

    group = parser.add_argument_group("output")
    group.add_argument("-o", dest="output", metavar="FILE", help="write there instead of stdout")
    group.add_argument("--print-op-generic", action="store_true", help="print ops in generic form")
    group.add_argument(
        "--mlir-print-debuginfo", "--print-debuginfo", action="store_true", dest="debuginfo", help="print locations"
    )
    group.add_argument("--print-ir-after-all", action="store_true", help="print the IR after each pass, to stderr")
    group.add_argument("--timing", action="store_true", help="print the seconds of each stage, to stderr")
    group.add_argument("--cost-report", action="store_true", help="print the communication of the result, to stderr")
    return parser


def split_pass_flags(argv: Sequence[str], passes: Collection[str]) -> tuple[str, list[str]]:
    """The pipeline that pass flags and `-p` spell, in their order, and the other arguments.

    A flag is `--NAME`, `--NAME=options` or `--NAME{options}` for a NAME in `passes`.
    """
    steps, rest, arguments = [], [], iter(argv)
    for argument in arguments:
        flag = re.match(r"--([\w-]+)(?:=|(?=\{)|\Z)", argument)
        if flag and flag[1] in passes:
            options = argument[flag.end() :]
            steps.append(flag[1] + (options if options.startswith("{") or not options else f"{{{options}}}"))
        elif argument == "-p" and (pipeline := next(arguments, None)) is not None:
            steps.append(pipeline)
        else:
            rest.append(argument)
    return ",".join(steps), rest


def pass_table(passes: PassTable) -> str:
    """The passes, one a line, each followed by its options."""
    lines = ["passes:"]
    for name in passes:
        summary, options = describe(name, passes)
        lines += [f"  --{name:<22}{summary}", *(f"{'':28}{option}" for option in options)]
    return "\n".join(lines)


def process(text: str, file: str, pipeline: Pipeline, options: argparse.Namespace) -> str:
    """The output for one input file.

    Raises:
        SpmdirErrors: every refusal of every part of the input.
    """
    treat = _check_expectations if options.verify_diagnostics else _transform
    outputs, errors = [], []
    for first_line, part in parts_of(text) if options.split_input_file else [(1, text)]:
        try:
            outputs.append(treat(part, file, first_line, pipeline, options))
        except SpmdirError as error:
            errors += flat(error)
    if errors:
        raise SpmdirErrors(errors)
    return "" if options.verify_diagnostics else SPLIT.join(outputs)


def _check_expectations(text: str, file: str, first_line: int, pipeline: Pipeline, options: argparse.Namespace) -> str:
    expected = list(expectations(text, file, first_line))
    issued: list[SpmdirError | SpmdirWarning] = []
    try:
        with shown_warnings(issued.append):
            _transform(text, file, first_line, pipeline, options)
    except SpmdirError as error:
        issued += flat(error)
    if errors := mismatches(expected, issued):
        raise SpmdirErrors(errors)
    return ""


def _transform(text: str, file: str, first_line: int, pipeline: Pipeline, options: argparse.Namespace) -> str:
    from spmdir.dialects import ir

    def print_ir(module: ModuleOp) -> str:
        return ir.print_ir(module, generic=options.print_op_generic, debuginfo=options.debuginfo)

    def after(name: str, module: ModuleOp) -> None:
        lap(name)
        if options.print_ir_after_all:
            print(f"// IR after {name}", print_ir(module), sep="\n", file=sys.stderr)

    lap = _stopwatch(options.timing)
    module = ir.parse(text, file, first_line)
    lap("parse")
    run_passes(module, pipeline, options.verify_each, after=after)
    output = print_ir(module)
    lap("print")
    rules = pipeline.rules
    if options.timing and rules.instances:
        print(f"{rules.clock.seconds:10.4f} s  of these, rules of {rules.instances} different calls", file=sys.stderr)
    if options.cost_report:
        from spmdir.report.communication import comm_report

        print(comm_report(module), file=sys.stderr)
    return output


def _stopwatch(on: bool) -> Callable[[str], None]:
    """A function that prints the seconds since it was last called."""
    last = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if on:
            print(f"{now - last:10.4f} s  {stage}", file=sys.stderr)
        last = time.perf_counter()

    return lap


if __name__ == "__main__":
    raise SystemExit(main())
