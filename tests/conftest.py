"""Golden files, and what the markers mean.

Every `.mlir` file in `tests/golden` is a golden file of `spmd-opt`, as docs/golden-tests.md describes them, and a test;
`pytest --update-golden` writes the expectations.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.hypothesis_profile  # noqa: F401  # loads the profile
from spmdir.core.errors import SpmdirError
from spmdir.tools.command import run_in_process, write_text
from spmdir.tools.golden import check_files
from tests.forgotten_plugins import forget_plugins

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expectations of tests/golden/**/*.mlir")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".mlir" and GOLDEN in file_path.parents:
        return GoldenFile.from_parent(parent, path=file_path)
    return None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cuda = [item for item in items if item.get_closest_marker("cuda")]
    if cuda:
        import torch

        if not torch.cuda.is_available():
            for item in cuda:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        if shares_a_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(TESTS))))


def shares_a_fixture(item: pytest.Item) -> bool:
    """Return whether `item` takes a fixture that is made once for its module: another worker would make it anew."""
    info = getattr(item, "_fixtureinfo", None)  # which pytest has no public name for
    return info is not None and any(found[-1].scope == "module" for found in info.name2fixturedefs.values())


def pytest_collection_finish() -> None:
    """Let the garbage collector pass by what imports made, and come less often: it took a sixth of the time."""
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Forget the plug-ins that are files of the test, so that another test may declare the same names."""
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None:
        forget_plugins(folder)


class GoldenFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield GoldenTest.from_parent(self, name=self.path.stem)


class GoldenTest(pytest.Item):
    def runtest(self) -> None:
        update = write_text if self.config.getoption("--update-golden") else None
        for error in check_files([str(self.path)], run_in_process, update):
            raise error

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:
        if isinstance(excinfo.value, SpmdirError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, str(self.path.relative_to(GOLDEN))
