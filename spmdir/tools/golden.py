"""Golden files: a program, a command, and the expected output of the command in one text.

The first line is a RUN line, as in lit: `// RUN: spmd-opt %s --propagate`, or `// RUN: not spmd-opt …` to expect exit
status 1. `%s` is the program. Commands may be piped: `// RUN: spmd-opt %s --localize | spmd report -`.
The comments at the end of a part are its expectation. Lines of stdout start with `// | `, lines of stderr with `// ! `,
and further commands of a pipe with `// $ `. docs/golden-tests.md describes the format.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from spmdir.core.errors import Location, ParseError, SpmdirError, shown
from spmdir.core.input_parts import parts_of
from spmdir.core.text_file import read_text_file

Run = Callable[[Sequence[str], str], tuple[int, str, str]]
"""(tool and arguments, text on stdin) → exit status, stdout and stderr, as `run_in_process`."""

_COMMAND = r"(?:spmd|spmd-opt) [^|<>;&]*"
_RUN = re.compile(rf"// RUN: (not )?(?=[^|]* %s(?: |$))({_COMMAND}(?:\| {_COMMAND})*)$")
_MARKS = ("// |", "// !", "// $")


@attrs.frozen
class Golden:
    """The contents of a golden file.

    Attributes:
        fails: whether the RUN line ends with exit status 1.
        commands: the tool and the arguments of each command in the RUN line. The first reads the program from stdin:
            `-` replaces `%s`. Each other command reads the output of the command before.
        parts: the source and the expectation of each part.
    """

    fails: bool
    commands: tuple[tuple[str, ...], ...]
    parts: tuple[tuple[str, str], ...]

    @property
    def sources(self) -> list[str]:
        """Return the IR of each part, without the RUN line, marks and expectations."""
        return [re.sub(r"\A// (?:RUN:|-----).*\n", "", source) for source, _ in self.parts]


def read_golden(text: str, file: str) -> Golden:
    """Parse the `text` of the golden file `file`.

    Raises:
        ParseError: the first line is not the RUN line of a golden file.
    """
    line, start = text.partition("\n")[0].rstrip(), Location(file, 1, 1)
    run = _RUN.match(line)
    if run is None:
        expected = "expected `// RUN: spmd-opt %s …` or `// RUN: not spmd-opt %s …`, with pipes to spmd or spmd-opt"
        raise ParseError(f"invalid RUN line of a golden file: {shown(line)}; {expected}", start)
    try:
        commands = [shlex.split(part.replace("%S", os.path.dirname(file) or ".")) for part in run[2].split("|")]
    except ValueError as error:
        raise ParseError(
            f"the RUN line cannot be split into arguments: {error}; expected the syntax of a shell: quote arguments",
            start,
        ) from None
    if any(word.startswith("--g") for word in commands[0]):
        raise ParseError("the RUN line has --golden; expected one run of a tool: leave out --golden", start)
    commands[0] = ["-" if word == "%s" else word for word in commands[0]]
    parts = [part for _, part in parts_of(text)] if "--split-input-file" in commands[0] else [text]
    return Golden(bool(run[1]), tuple(map(tuple, commands)), tuple(map(_split_expectation, parts)))


def update_golden(text: str, file: str, run: Run) -> str:
    """Return the text of the golden file `file` with its expectations replaced by the current output.

    Raises:
        SpmdirError: the first line is not a RUN line, or the exit status is not the expected one.
    """
    golden, start = read_golden(text, file), Location(file, 1, 1)
    tool = golden.commands[0][0]
    written, has_failed, messages = "", False, ""
    for index, (source, expected) in enumerate(golden.parts):
        # Blank lines in place of the earlier parts keep the line numbers of this part in errors.
        ir = "\n" * written.count("\n") + re.sub(r"\A// -----.*", "", source)
        status, transcript, errors = _transcript(golden, ir, run, start)
        if "--verify-diagnostics" in golden.commands[0]:
            transcript = ""
        has_failed, messages = has_failed or status != 0, messages + errors
        last_index = index == len(golden.parts) - 1
        is_empty = not transcript and not expected
        written += source if is_empty else source.rstrip("\n") + f"\n\n{transcript}" + "\n" * (not last_index)
    if golden.fails and not has_failed:
        raise SpmdirError(
            f"{tool} succeeded; expected an error, as `// RUN: not {tool} …` requires: remove `not`, or "
            "correct the input",
            start,
        )
    if has_failed and not golden.fails:
        hint = f"write `// RUN: not {tool} …` if this is expected"
        raise SpmdirError(f"{tool} failed; {hint}\n{messages.replace('%s:', f'{file}:').strip()}", start)
    return written


def _transcript(golden: Golden, text: str, run: Run, start: Location) -> tuple[int, str, str]:
    """Run the commands of a golden file on a program, each on the output of the command before.

    Commands after a failed one do not run.

    Returns: the exit status of the last command, the text of the expectation, and the errors of all commands.

    Raises:
        SpmdirError: a command had an internal error, or exited without reading the program; at `start`.
    """
    transcript, messages, status = "", "", 0
    for index, command in enumerate(golden.commands):
        try:
            status, text, errors = run(command, text)
        except SystemExit:  # of --version and --help
            message = f"{command[0]} exited before it read the program; remove --help and --version"
            raise SpmdirError(message, start) from None
        if status == 2:
            raise SpmdirError(errors.strip(), start)
        if index:
            transcript += _prefix_lines("// $", shlex.join(command))
        else:
            text, errors = text.replace("<stdin>", "%s"), errors.replace("<stdin>", "%s")
        transcript += _prefix_lines("// |", text) + _prefix_lines("// !", errors)
        messages += errors
        if status:
            break
    return status, transcript, messages


def difference(text: str, new: str) -> str:
    """Return a unified diff from the golden file `text` to its updated text `new`."""
    lines = difflib.unified_diff(text.splitlines(), new.splitlines(), "expected", "found", lineterm="", n=8)
    return "\n".join(lines)


def golden_files(paths: Sequence[str]) -> Iterator[str]:
    """Yield the files of `paths`, and for each folder its `.mlir` files at any depth, sorted.

    Raises:
        SpmdirError: a folder has no such file.
    """
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        files = sorted(str(file) for file in Path(path).rglob("*.mlir") if file.is_file())
        if not files:
            raise SpmdirError(f"found no .mlir file in '{path}'; expected golden files: correct the path")
        yield from files


def check_files(paths: Sequence[str], run: Run, update: Callable[[str, str], None] | None) -> Iterator[SpmdirError]:
    """Yield an error for each golden file in `paths` with another output than expected.

    Args:
        update: (path, text) → None, which writes an updated file. None only compares.
    """
    for path in golden_files(paths):
        try:
            text = read_text_file(path, f"'{path}'")
            new = update_golden(text, path, run)
        except SpmdirError as error:
            yield error
            continue
        if new == text:
            continue
        if update is None:
            hint = "the output differs; run with --update-golden if the change is intended"
            yield SpmdirError(f"{hint}\n{difference(text, new)}", Location(path, 1, 1))
        else:
            update(path, new)


def _split_expectation(part: str) -> tuple[str, str]:
    """Return (source, expectation) of a part. The expectation is the comments with a mark at its end; "" if none."""
    lines = part.rstrip("\n").splitlines(keepends=True)
    start = len(lines)
    while start and lines[start - 1].startswith(_MARKS):
        start -= 1
    return ("".join(lines[:start]), "".join(lines[start:])) if start < len(lines) else (part, "")


def _prefix_lines(mark: str, text: str) -> str:
    """Return a text with `mark` and a space before each line."""
    return "".join(f"{mark} {line}".rstrip() + "\n" for line in text.splitlines())
