"""Every make target runs in its quickest form, in a copy of the tree, which it leaves as it is."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.warm_commands import ROOT, warm_commands

MAKEFILE = (ROOT / "Makefile").read_text()

QUICK_FORMS = {
    "bench": ("BENCHMARKS=reshard_bound OPTIONS='--limit 5'", r"[1-9]\d* pairs, mean"),
    "check-placements": (
        "PLACEMENTS=spmdir/placements/zigzag.py OPTIONS='--quick --law text' WRONG=ErrorAsANumber",
        r"ZigZag.* laws hold.*\n(.*\n)?ErrorAsANumber +declaration +declaration\n0 are not as",
    ),
    "check-rules": ("OPS=aten.relu OPTIONS='--packaged --world 2 --processes 1'", "aten.relu"),
    "decisions": ("OPTIONS='--count 1'", "2 compared, 0 decided worse"),
    "demo": ("", "8 simulated ranks against one device"),
    "explore": ("OPTIONS='--collect-only tests/core'", r"test_intervals\.py::test_"),
    "fuzz": ("MINUTES=0.001 OPTIONS='--kind deletions --seed 0 --examples 5 --processes 1'", r"deletions +[1-9]"),
    "matrix": ("OPTIONS='--models llama --plans fsdp --meshes 3 --sizes 2x4'", "0 cases failed"),
    "op-table": ("OPS=aten.relu", ""),
    "parsed-texts": ("", ""),
    "peers": ("OPTIONS='--small --programs mlp --plans tp --meshes 2x4'", r"mlp +tp +DTensor +\d"),
    "placements": ("OPTIONS='--models llama --plans shipped0 --meshes 3 --sizes 2x4'", "0 cases failed"),
    "reshards": ("COUNT=10 EVERY=10000", r"plans keep the value\n.*\n10 reshards, 0 wrong"),
    "site": ("", "sphinx-build"),
    "style": ("OPTIONS=README.md", r"phrases, \d+\.\d per 1,000 words; 0 vague names"),
    "test-torch": (
        "TORCH=2.11 TORCH_TESTS=tests/torch_interop/test_supported_versions.py OPTIONS='-n 0'",
        r"[1-9]\d* passed",
    ),
    "test-cuda": ("OPTIONS='--collect-only -q tests/cuda'", r"[1-9]\d*(/\d+)? tests collected"),
    "wheel-check": ("OPTIONS=--no-isolation", "the wheel works in a fresh environment"),
}
"""Target → the variables of its quickest form, and what that prints."""

INSTALLED = [
    part
    for name in ("env", *(f".venv/.installed-{extra}" for extra in ("demo", "docs", "peers", "release")))
    for part in ("-o", name)
]
"""Options of make: what the targets install is there already."""

COLD = {"op-table"}
"""The targets that list what torch has registered, which depends on the modules that are imported."""

RUN_THIS = {"env", "test"}
"""The targets that run this test."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, in which git knows each file."""
    copy = tmp_path_factory.mktemp("copy") / "spmdir"
    shutil.copytree(
        ROOT,
        copy,
        symlinks=True,
        ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "node_modules", "*.egg-info"),
    )
    shutil.copy(ROOT / ".gitignore", copy)
    for command in ("init", "add ."):
        subprocess.run(["git", "-c", "advice.defaultBranchName=false", *command.split()], cwd=copy, check=True)
    return copy


@pytest.fixture(scope="module")
def shell(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with the commands of the copy, and an environment without the variables of a make around the tests."""
    folder = tmp_path_factory.mktemp("bin")
    with warm_commands(folder, tree) as environment:
        yield folder, {name: value for name, value in environment.items() if not name.startswith(("MAKE", "MFLAGS"))}


def test_every_target_has_a_quick_form() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert sorted(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)) == sorted(phony.split())
    assert {*QUICK_FORMS, *RUN_THIS} == {*phony.split()}


def test_bench_lists_benchmarks() -> None:
    (names,) = re.findall(r"^BENCHMARKS \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert [name for name in names.split() if not (ROOT / f"benchmarks/{name}.py").exists()] == []


def test_a_version_of_torch_has_an_environment_of_its_own(tree: Path, shell: tuple[Path, dict[str, str]]) -> None:
    dry = ["make", "-n", "test-torch", "TORCH=2.11", "PYTHON=python3"]
    commands = subprocess.run(dry, capture_output=True, text=True, cwd=tree, env=shell[1], check=True).stdout
    for command in (
        "python3 -m venv .venv-torch-2.11",
        ".venv-torch-2.11/bin/python -m pip install --quiet -e '.[test,demo]' 'torch==2.11.*'",
        ".venv-torch-2.11/bin/pytest -q",
    ):
        assert command in commands


@pytest.mark.parametrize("target", QUICK_FORMS)
def test_a_target_runs(target: str, tree: Path, shell: tuple[Path, dict[str, str]]) -> None:
    variables, expected = QUICK_FORMS[target]
    folder, environment = shell
    if target in COLD:
        folder = Path(sys.executable).parent
    done = subprocess.run(
        ["make", "--no-print-directory", *INSTALLED, f"BIN={folder}", target, *shlex.split(variables)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tree, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and re.search(expected, done.stdout), done.stdout
    changed = subprocess.run(["git", "diff", "--stat"], capture_output=True, text=True, cwd=tree, check=True)
    subprocess.run(["git", "checkout", "-q", "."], cwd=tree, check=True)
    assert not changed.stdout, f"make {target} writes other files than the tree has\n{changed.stdout}"
