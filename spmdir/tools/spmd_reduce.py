"""`spmd-reduce`: make a program that shows a failure as small as it gets."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from io import BytesIO, TextIOWrapper
from typing import Any

from spmdir.core.errors import SpmdirError, did_you_mean, print_remark
from spmdir.core.number_text import real
from spmdir.plugins import load_plugins
from spmdir.tools.command import ArgumentParser, captured, guarded, read_text, write_text

_DESCRIPTION = (
    "Reduce a program while a test holds: drop functions, results, ops, arguments, axes and shardings, shrink sizes."
)
_EXAMPLES = """\
examples:
  spmd-reduce in.mlir --run 'spmd-opt --propagate --localize' --expect-error 'run .* before'
  spmd-reduce in.mlir --run 'spmd-run --check' --expect-error 'output 0'
  spmd-reduce in.mlir --run 'spmd-opt --fuse-collectives' --expect-output 'spmd.all_to_all' -o small.mlir
  spmd-reduce in.mlir --test './is-interesting.sh {}'

A tool of spmdir that --run names runs in this process, in milliseconds, and its arguments, such as passes, are reduced
too; a --test command is of interest if its exit status is 0. The program comes on stdin, or in a file where the command
says {}. Every program that is tried reads and verifies, unless the input does not verify.
"""
_SHELL = ("|", ">", "<", "&&", "||", ";")
"""Words by which a shell joins commands and files."""

_TOOLS = ("spmd-opt", "spmd-run", "spmd-translate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    load_plugins(options.load_plugin)
    text, file = read_text(options.input)
    _check(options)
    from spmdir.dialects import ir
    from spmdir.tools.reducer import TrialProgram, reduce
    from spmdir.tools.reducer_steps import ops_in

    try:
        arguments = tuple(shlex.split(options.run or ""))
    except ValueError as error:
        raise SpmdirError(f"--run cannot be split into arguments: {error}") from None
    if options.run is not None and not arguments:
        raise SpmdirError("--run is empty; expected a command such as 'spmd-opt --propagate'")
    plugins = tuple(f"--load-plugin={plugin}" for plugin in options.load_plugin)
    if options.run and arguments[:1] not in [(tool,) for tool in _TOOLS]:
        found = arguments[0] if arguments else ""
        raise SpmdirError(
            f"--run cannot run '{found}'; expected one of {', '.join(_TOOLS)}, or --test{did_you_mean(found, _TOOLS)}"
        )
    if shell := next((word for word in arguments if word in _SHELL), None):
        raise SpmdirError(f"--run runs one tool without a shell, and has '{shell}'; expected one tool, or --test")
    test = _run_test(options.expect_error, options.expect_output) if options.run else _command_test(options)
    printed: list[str] = []

    def is_interesting(one: TrialProgram) -> bool:
        holds, printed[:] = test(one.text, (*one.arguments, *plugins))
        return holds

    try:
        found = reduce(TrialProgram(text, arguments), is_interesting, options.timeout, file)
    except SpmdirError as error:
        said = "".join(printed).strip()
        error.message += f"; it printed:\n{said}" if said else "; it printed nothing" if printed else ""
        raise
    ending = "" if found.finished else f"; stopped after {options.timeout:g} s, more may go"
    before, left = (ops_in(ir.parse(one, verify_module=False)) for one in (text, found.candidate.text))
    print_remark(f"{left} of {before} ops are left, {found.probes} tries{ending}")
    if options.run:
        print_remark(shlex.join((*found.candidate.arguments, *plugins)))
    write_text(options.output, found.candidate.text)
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser(
        "spmd-reduce",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("input", nargs="?", default="-", help="file of textual IR; - or nothing is stdin")
    parser.add_plugins()
    parser.add_argument("--test", metavar="COMMAND", help="a shell command; exit status 0 says: of interest")
    parser.add_argument("--run", metavar="COMMAND", help="a tool of spmdir with arguments, to run in this process")
    parser.add_argument("--expect-error", metavar="REGEX", help="with --run: it fails, and stderr has a match")
    parser.add_argument("--expect-output", metavar="REGEX", help="with --run: it succeeds, and stdout has a match")
    parser.add_argument("--timeout", type=_seconds, default=math.inf, metavar="S", help="stop after S seconds")
    parser.add_argument("-o", dest="output", metavar="FILE", help="write there instead of stdout")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = real(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time; expected seconds, as in 60")
    return seconds


def _check(options: argparse.Namespace) -> None:
    if (options.test is None) == (options.run is None):
        raise SpmdirError("expected one of --test COMMAND and --run COMMAND; see spmd-reduce --help")
    expected = [one for one in (options.expect_error, options.expect_output) if one is not None]
    if len(expected) != int(options.run is not None):
        raise SpmdirError("--run needs one of --expect-error REGEX and --expect-output REGEX, --test neither")
    for text in expected:
        try:
            re.compile(text)
        except re.error as error:
            raise SpmdirError(f"'{text}' is not a regular expression: {error}") from None


Test = Callable[[str, Sequence[str]], tuple[bool, list[str]]]
"""(Program, arguments) → whether it is of interest, and what the tool printed to stdout and stderr."""


def _run_test(error: str | None, output: str | None) -> Test:
    def test(text: str, arguments: Sequence[str]) -> tuple[bool, list[str]]:
        status, stdout, stderr = in_process(arguments, text)
        if error is not None:
            return status != 0 and re.search(error, stderr) is not None, [stdout, stderr]
        return status == 0 and re.search(output or "", stdout) is not None, [stdout, stderr]

    return test


def in_process(arguments: Sequence[str], text: str) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a tool in this process, with `text` on its stdin."""
    tool, *rest = arguments
    run = import_module(f"spmdir.tools.{tool.replace('-', '_')}").main
    stdin, sys.stdin = sys.stdin, TextIOWrapper(BytesIO(text.encode()))
    try:
        return captured(lambda: run(rest))
    except SystemExit as stopped:
        return int(stopped.code or 0), "", ""
    finally:
        sys.stdin = stdin


def _command_test(options: argparse.Namespace) -> Test:
    limit = options.timeout if math.isfinite(options.timeout) else None

    def test(text: str, _: Sequence[str]) -> tuple[bool, list[str]]:
        with tempfile.NamedTemporaryFile("w", suffix=".mlir", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            command = options.test.replace("{}", shlex.quote(file.name))
            given: dict[str, Any] = {"input": text.encode(), "capture_output": True}
            try:
                done = subprocess.run(command, shell=True, check=False, timeout=limit, **given)
            except subprocess.TimeoutExpired:
                return False, [f"nothing within {limit:g} s"]
        return done.returncode == 0, [one.decode(errors="replace") for one in (done.stdout, done.stderr)]

    return test


if __name__ == "__main__":
    raise SystemExit(main())
