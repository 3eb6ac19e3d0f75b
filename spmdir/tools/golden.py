"""Golden files: an input of `spmd-opt`, its arguments, and what it prints, in one text.

The first line is a RUN line as lit reads it: `// RUN: spmd-opt %s --propagate`, or `// RUN: not spmd-opt …` where the
exit status is 1. The comments that end a part are its expectation: `// | ` before each line of stdout, `// ! ` before
each line of stderr. docs/golden-tests.md describes the format.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from spmdir.core.errors import Location, ParseError, SpmdirError
from spmdir.core.input_parts import parts_of
from spmdir.core.text_file import read_text_file

Run = Callable[[Sequence[str], str], tuple[int, str, str]]
"""(arguments, text of the input file) → exit status, stdout and stderr of `spmd-opt`; `%s` names the input."""

_RUN = re.compile(r"// RUN: (not )?spmd-opt (?=(?:.* )?%s(?: |$))([^|<>;&]*)$")
_STREAMS = ("// |", "// !")


@attrs.frozen
class Golden:
    """The contents of a golden file.

    Attributes:
        fails: whether `spmd-opt` ends with exit status 1.
        arguments: those of `spmd-opt`, with `%s` for the input file.
        parts: source and expectation of each part.
    """

    fails: bool
    arguments: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]

    @property
    def sources(self) -> list[str]:
        """Return the IR of each part, without the RUN line, marks and expectations."""
        return [re.sub(r"\A// (?:RUN:|-----).*\n", "", source) for source, _ in self.parts]


def read_golden(text: str, file: str) -> Golden:
    """Return the contents of the golden file `file`, which has the text `text`.

    Raises:
        ParseError: the first line is not the RUN line of a golden file.
    """
    first = text.partition("\n")[0].rstrip()
    run = _RUN.match(first)
    if run is None:
        found = f"found '{first}'; expected `// RUN: spmd-opt %s …` or `// RUN: not spmd-opt %s …`, without a pipe"
        raise ParseError(f"no golden file: {found}", Location(file, 1, 1))
    try:
        arguments = tuple(shlex.split(run[2].replace("%S", os.path.dirname(file) or ".")))
    except ValueError as error:
        raise ParseError(f"the RUN line cannot be split into arguments: {error}", Location(file, 1, 1)) from None
    if any(argument.startswith("--g") for argument in arguments):
        raise ParseError("a golden file cannot run golden files; leave out --golden", Location(file, 1, 1))
    parts = [part for _, part in parts_of(text)] if "--split-input-file" in arguments else [text]
    return Golden(bool(run[1]), arguments, tuple(_without_expectation(part) for part in parts))


def updated(text: str, file: str, run: Run) -> str:
    """Return the text of the golden file `file` with the expectations that hold now.

    Raises:
        SpmdirError: the first line is not a RUN line, or the exit status is not the expected one.
    """
    golden = read_golden(text, file)
    written, failed, messages = "", False, ""
    for index, (source, expected) in enumerate(golden.parts):
        # A part alone, on the lines that it has in the file.
        ir = "\n" * written.count("\n") + re.sub(r"\A// -----.*", "", source)
        try:
            status, *streams = run(golden.arguments, ir)
        except SystemExit:  # of --version and --help
            raise SpmdirError("spmd-opt ends before it reads the program", Location(file, 1, 1)) from None
        if status == 2:
            raise SpmdirError(streams[1].strip(), Location(file, 1, 1))
        failed |= status != 0
        found = _expectation(streams) if "--verify-diagnostics" not in golden.arguments else ""
        messages += streams[1]
        last = index == len(golden.parts) - 1
        written += source.rstrip("\n") + f"\n\n{found}" + "\n" * (not last) if found or expected else source
    if failed != golden.fails:
        if not failed:
            raise SpmdirError("spmd-opt succeeded; `// RUN: not spmd-opt …` expects an error", Location(file, 1, 1))
        told = messages.replace("%s:", f"{file}:").strip()
        raise SpmdirError(
            f"spmd-opt failed; write `// RUN: not spmd-opt …` if this is expected\n{told}", Location(file, 1, 1)
        )
    return written


def difference(text: str, new: str) -> str:
    """Return the lines in which the golden file `text` differs from the up-to-date `new`, as a unified diff."""
    lines = difflib.unified_diff(text.splitlines(), new.splitlines(), "expected", "found", lineterm="", n=8)
    return "\n".join(lines)


def golden_files(paths: Sequence[str]) -> Iterator[str]:
    """Yield the files among `paths`, and the `.mlir` files in the folders among them, sorted.

    Raises:
        SpmdirError: a folder has no such file.
    """
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        found = sorted(str(file) for file in Path(path).rglob("*.mlir") if file.is_file())
        if not found:
            raise SpmdirError(f"found no .mlir file in '{path}'; expected golden files")
        yield from found


def check_files(paths: Sequence[str], run: Run, update: Callable[[str, str], None] | None) -> Iterator[SpmdirError]:
    """Yield an error for each golden file in `paths` that does not hold.

    Args:
        update: (path, text) → None, writes a file whose expectations have changed; None only compares.
    """
    for path in golden_files(paths):
        try:
            text = read_text_file(path, f"'{path}'")
            new = updated(text, path, run)
        except SpmdirError as error:
            yield error
            continue
        if new == text:
            continue
        if update is None:
            hint = "the output differs; run with --update-golden if the change is meant"
            yield SpmdirError(f"{hint}\n{difference(text, new)}", Location(path, 1, 1))
        else:
            update(path, new)


def _without_expectation(part: str) -> tuple[str, str]:
    """Return source and expectation of a part: the comments that end it are the expectation."""
    lines = part.rstrip("\n").splitlines(keepends=True)
    start = len(lines)
    while start and lines[start - 1].startswith(_STREAMS):
        start -= 1
    return ("".join(lines[:start]), "".join(lines[start:])) if start < len(lines) else (part, "")


def _expectation(streams: Sequence[str]) -> str:
    return "".join(
        f"{mark} {line}".rstrip() + "\n"
        for mark, stream in zip(_STREAMS, streams, strict=True)
        for line in stream.splitlines()
    )
