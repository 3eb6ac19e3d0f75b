"""`spmd-reduce`: reduce a program that shows a failure."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from spmdir.core.errors import SpmdirError, did_you_mean, print_remark
from spmdir.core.number_text import real
from spmdir.plugins import load_plugins
from spmdir.tools.argument_parser import ArgumentParser
from spmdir.tools.command import read_text, run_in_process, run_tool, write_text

_DESCRIPTION = "Reduce a program that shows a failure, and the passes that lead to it."
_EXAMPLES = """\
examples:
  spmd-reduce in.mlir --run 'spmd-opt --propagate --localize' --expect-error 'run .* before'
  spmd-reduce in.mlir --run 'spmd-run --check' --expect-error 'output 0'
  spmd-reduce in.mlir --run 'spmd-opt --fuse-collectives' --expect-output 'spmd.all_to_all' -o small.mlir
  spmd-reduce in.mlir --test './is-interesting.sh {}'

The reducer removes functions, results, ops, arguments, mesh axes and shardings, and reduces sizes, as long as the
program shows the failure. --run is a tool of spmdir, which runs in this process in milliseconds. Its arguments, such as
passes, are reduced too. --test is a shell command: exit status 0 means that the program shows the failure. The command
reads the program on stdin, or in a file whose name replaces {}. If the input verifies, so does each smaller program.
"""
_SHELL = ("|", ">", "<", "&&", "||", ";")
"""Shell operators, which --run does not support."""

_TOOLS = ("spmd", "spmd-opt", "spmd-run", "spmd-translate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv`, by default the arguments of the process, and return the exit status."""
    return run_tool(_main, argv)


def _main(argv: Sequence[str]) -> int:
    """Reduce the input, print the number of ops that are left, and write the smaller program."""
    options = argument_parser().parse(argv)
    load_plugins(options.load_plugin)
    text, file = read_text(options.input)
    _check_options(options)
    from spmdir.dialects import ir
    from spmdir.tools.reducer import TrialProgram, reduce
    from spmdir.tools.reducer_steps import count_ops

    arguments = _run_arguments(options.run) if options.run is not None else ()
    plugins = tuple(f"--load-plugin={plugin}" for plugin in options.load_plugin)
    test = _run_test(options.expect_error, options.expect_output) if options.run else _command_test(options)
    printed: list[str] = []

    def is_interesting(program: TrialProgram) -> bool:
        shows_failure, printed[:] = test(program.text, (*program.arguments, *plugins))
        return shows_failure

    try:
        reduced = reduce(TrialProgram(text, arguments), is_interesting, options.timeout, file)
    except SpmdirError as error:
        output = "".join(printed).strip()
        error.message += f"; it printed:\n{output}" if output else "; it printed nothing" if printed else ""
        raise
    ending = "" if reduced.finished else f"; stopped after {options.timeout:g} s, so more may be possible"
    programs = (text, reduced.candidate.text)
    op_count_before, op_count = (count_ops(ir.parse(program, verify_module=False)) for program in programs)
    print_remark(f"{op_count} of {op_count_before} ops are left, {reduced.probes} tries{ending}")
    if options.run:
        print_remark(shlex.join((*reduced.candidate.arguments, *plugins)))
    write_text(options.output, reduced.candidate.text)
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-reduce", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_input(is_optional=True)
    parser.add_plugins()
    explained = "Run this tool of spmdir with its arguments on each program."
    parser.add_argument("--run", metavar="COMMAND", help=explained)
    explained = "With --run: the failure is an error with text on stderr that matches REGEX."
    parser.add_argument("--expect-error", metavar="REGEX", help=explained)
    explained = "With --run: the failure is a success with text on stdout that matches REGEX."
    parser.add_argument("--expect-output", metavar="REGEX", help=explained)
    explained = "Run this shell command on each program; exit status 0 means that the failure shows."
    parser.add_argument("--test", metavar="COMMAND", help=explained)
    explained = "Stop after this many seconds, and print the smallest program so far."
    parser.add_argument("--timeout", type=_parse_seconds, default=math.inf, metavar="SECONDS", help=explained)
    parser.add_output()
    return parser


def _run_arguments(command: str) -> tuple[str, ...]:
    """Return the tool and the arguments in the value of --run; raise SpmdirError if they are not one tool of spmdir."""
    try:
        arguments = tuple(shlex.split(command))
    except ValueError as error:
        raise SpmdirError(
            f"--run cannot be split into arguments: {error}; expected the syntax of a shell: quote arguments"
        ) from None
    if not arguments:
        raise SpmdirError("--run is empty; expected a command such as 'spmd-opt --propagate'")
    tool = arguments[0]
    if tool not in _TOOLS:
        raise SpmdirError(
            f"--run cannot run '{tool}'; expected one of {', '.join(_TOOLS)}, or --test{did_you_mean(tool, _TOOLS)}"
        )
    operators = [word for word in arguments if word in _SHELL]
    if operators:
        raise SpmdirError(
            f"--run runs one tool without a shell, but contains '{operators[0]}'; expected one tool, or --test"
        )
    return arguments


def _parse_seconds(text: str) -> float:
    """Parse a positive time in seconds, for argparse."""
    try:
        seconds = real(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time; expected seconds, as in 60")
    return seconds


def _check_options(options: argparse.Namespace) -> None:
    """Raise SpmdirError for options that contradict each other, and for an invalid regular expression."""
    if (options.test is None) == (options.run is None):
        present = "neither --test nor --run" if options.run is None else "both --test and --run"
        raise SpmdirError(f"found {present}; expected one of --test COMMAND and --run COMMAND; see spmd-reduce --help")
    expected = [regex for regex in (options.expect_error, options.expect_output) if regex is not None]
    if len(expected) != int(options.run is not None):
        raise SpmdirError(
            f"found {len(expected)} of --expect-error and --expect-output; expected exactly one of them with --run, "
            "and none with --test"
        )
    for text in expected:
        try:
            re.compile(text)
        except re.error as error:
            raise SpmdirError(f"'{text}' is not a regular expression: {error}; expected the syntax of Python") from None


InterestTest = Callable[[str, Sequence[str]], tuple[bool, list[str]]]
"""(program, arguments) → whether the failure shows, and the output on stdout and stderr."""


def _run_test(error: str | None, output: str | None) -> InterestTest:
    """Return a test that runs a tool in this process.

    Args:
        error: a regular expression. If it is not None, the failure shows if the tool fails and stderr matches.
        output: otherwise, the failure shows if the tool succeeds and stdout matches this regular expression.
    """

    def test(text: str, arguments: Sequence[str]) -> tuple[bool, list[str]]:
        """Run the tool that `arguments` name on the program `text`."""
        try:
            status, stdout, stderr = run_in_process(arguments, text)
        except SystemExit as ended:  # of --help
            status, stdout, stderr = int(ended.code or 0), "", ""
        if error is not None:
            return status != 0 and re.search(error, stderr) is not None, [stdout, stderr]
        return status == 0 and re.search(output or "", stdout) is not None, [stdout, stderr]

    return test


def _command_test(options: argparse.Namespace) -> InterestTest:
    """Return a test that runs the shell command of --test: exit status 0 shows the failure."""
    limit = options.timeout if math.isfinite(options.timeout) else None

    def test(text: str, _: Sequence[str]) -> tuple[bool, list[str]]:
        """Run the command on the program `text`. A command that exceeds the time limit does not show the failure."""
        with tempfile.NamedTemporaryFile("w", suffix=".mlir", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            command = options.test.replace("{}", shlex.quote(file.name))
            options_of_run: dict[str, Any] = {"input": text.encode(), "capture_output": True}
            try:
                process = subprocess.run(command, shell=True, check=False, timeout=limit, **options_of_run)
            except subprocess.TimeoutExpired:
                return False, [f"nothing within {limit:g} s"]
        return process.returncode == 0, [stream.decode(errors="replace") for stream in (process.stdout, process.stderr)]

    return test


if __name__ == "__main__":
    raise SystemExit(main())
