"""The range of torch versions is one: in the package's metadata, in the pages, and in the error of another version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch

from spmdir.core.admitted_ops import VERSIONS
from spmdir.core.errors import UnsupportedError
from spmdir.torch_interop.supported_versions import require_supported

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "version", [torch.__version__, *(f"{version}.1+cu130" for version in VERSIONS), "2.13.0a0+git1"]
)
def test_supported_versions_are_accepted(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0.dev20260901+cpu", "3.0"])
def test_another_version_is_an_error_that_names_the_range(version: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(f"torch {version} is installed; expected torch 2.11 to 2.13")):
        require_supported(version)


def test_the_metadata_and_the_readme_have_the_range_of_the_table_of_ops() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    first, last = VERSIONS[0], VERSIONS[-1].split(".")
    assert f"torch>={first},<{last[0]}.{int(last[1]) + 1}" in dependencies
    assert f"PyTorch {first} to {VERSIONS[-1]}" in (ROOT / "README.md").read_text()
