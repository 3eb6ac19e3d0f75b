"""What is published has its data files, its version and every page; `make wheel-check` builds and installs it."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import spmdir

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_data_file_of_a_package_is_in_the_wheel() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["*"]
    for path in (ROOT / "spmdir").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".py":
            assert any(fnmatch(path.name, pattern) for pattern in patterns), f"package-data lacks {path.name}"


def test_the_package_says_its_version_and_that_it_has_types() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", spmdir.__version__)
    assert spmdir.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "spmdir/py.typed").exists()


def test_every_script_is_a_function_of_its_tool() -> None:
    for script, target in PYPROJECT["project"]["scripts"].items():
        module, _, function = target.partition(":")
        assert script.replace("-", "_") == module.rpartition(".")[2]
        assert callable(getattr(import_module(module), function))
