"""The versions of torch that spmdir runs with: those whose ops its table lists."""

from __future__ import annotations

from spmdir.core.admitted_ops import VERSIONS
from spmdir.core.errors import UnsupportedError


def require_supported(version: str) -> None:
    """Raise UnsupportedError unless `version`, as `torch.__version__` spells it, is supported."""
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        major, minor = VERSIONS[-1].split(".")
        raise UnsupportedError(
            f"torch {version} is installed; expected torch {VERSIONS[0]} to {VERSIONS[-1]}: install one of "
            f"them, as by pip install 'torch>={VERSIONS[0]},<{major}.{int(minor) + 1}'"
        )
