"""The tools of a checkout, `python` and `torchrun` as commands, for all of which one process imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
COMMANDS = {
    **{name: target.partition(":")[0] for name, target in SCRIPTS.items()},
    "python": "tests.docs.script",
    "torchrun": "tests.docs.torchrun",
    **{
        name: f"tests.docs.script -m {module}"
        for name, module in {
            "check-wheel-contents": "check_wheel_contents",
            "pytest": "pytest",
            "sphinx-build": "sphinx",
            "twine": "twine",
        }.items()
    },
}
"""Command → the module that it runs, with its first arguments."""


@contextmanager
def warm_commands(folder: Path, root: Path = ROOT) -> Iterator[dict[str, str]]:
    """Write the commands of the checkout at `root` into `folder`; yield an environment that has it on its path."""
    client, server = (root / "tests" / "docs" / f"tool_{side}.py" for side in ("client", "server"))
    for name, module in COMMANDS.items():
        (folder / name).write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -SE "{client}" "{folder}/socket" {module} "$@"\n'
        )
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    # What an installation of this checkout would tell tools of xDSL.
    metadata = folder / "spmdir_universe-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spmdir-universe\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[xdsl.universe]\nspmdir = spmdir.universe:UNIVERSE\n")
    packages = os.pathsep.join([str(root), str(folder)])
    environment = {
        **os.environ, "PATH": path, "PYTHONPATH": packages, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(server), f"{folder}/socket"], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    try:
        yield environment
    finally:
        process.kill()
        process.wait()
