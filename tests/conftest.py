"""Golden files, and what the markers mean.

A golden file `tests/golden/**/*.mlir` is a test of `spmd-opt`: its first line is `// RUN: <arguments>`, then
comes the input, and the comments that end it are the expectation, `// | ` before each line of stdout and
`// ! ` before each line of stderr. `pytest --update-golden` writes the expectation. Files run with
`--verify-diagnostics` have none: their `expected-error` comments say it all.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from spmdir.tools import spmd_opt

GOLDEN = Path(__file__).parent / "golden"
RUN = "// RUN:"
STREAMS = ("// |", "// !")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expectations of tests/golden/**/*.mlir")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".mlir" and GOLDEN in file_path.parents:
        return GoldenFile.from_parent(parent, path=file_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cuda = [item for item in items if item.get_closest_marker("cuda")]
    if cuda:
        import torch

        if not torch.cuda.is_available():
            for item in cuda:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        # A gloo test already fills the machine with its ranks; two at a time would only run into timeouts.
        if item.get_closest_marker("gloo"):
            item.add_marker(pytest.mark.xdist_group("gloo"))


class GoldenFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield GoldenTest.from_parent(self, name=self.path.stem)


class GoldenMismatch(Exception):
    """What spmd-opt printed is not what the file says."""


class GoldenTest(pytest.Item):
    def runtest(self) -> None:
        text = self.path.read_text()
        arguments = shlex.split(text.partition("\n")[0].removeprefix(RUN))
        if not text.startswith(RUN):
            raise GoldenMismatch(f"{self.path}: expected `{RUN} <spmd-opt arguments>` on the first line")
        source, expected = split(text)
        status, stdout, stderr = spmd_opt_on(source, arguments)
        if status == 2 or (status and "--verify-diagnostics" in arguments):
            raise GoldenMismatch(stderr)
        actual = "".join(
            f"{mark} {line}".rstrip() + "\n"
            for mark, stream in zip(STREAMS, (stdout, stderr), strict=True)
            for line in stream.splitlines()
        )
        if actual == expected:
            return
        if self.config.getoption("--update-golden"):
            self.path.write_text(source.rstrip("\n") + "\n\n" + actual)
            return
        diff = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), "expected", "actual", lineterm="", n=max(len(expected), 1)
        )
        raise GoldenMismatch("\n".join(["run pytest --update-golden if the change is meant", *diff]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:
        if isinstance(excinfo.value, GoldenMismatch):
            return f"{self.path}\n{excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, str(self.path.relative_to(GOLDEN))


def split(text: str) -> tuple[str, str]:
    """Input and expectation of a golden file: the comments that end it are the expectation."""
    lines = text.splitlines(keepends=True)
    start = len(lines)
    while start and lines[start - 1].startswith(STREAMS):
        start -= 1
    return "".join(lines[:start]), "".join(lines[start:])


def spmd_opt_on(text: str, arguments: list[str]) -> tuple[int, str, str]:
    """Status, stdout and stderr of `spmd-opt` with `text` on its stdin, in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    with (
        mock.patch.object(sys, "stdin", stdin),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        status = spmd_opt.main(arguments)
    return status, stdout.getvalue(), stderr.getvalue()
