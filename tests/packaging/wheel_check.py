"""Looks through the sdist and the wheel in a folder, and uses the wheel in a fresh environment: `make wheel-check`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("benchmarks", "docs", "editors", "examples", "spmdir", "tests")

USE_ALL_NAMES = """
import types, spmdir
values = [getattr(spmdir, name) for name in dir(spmdir)]
for module in values:
    if isinstance(module, types.ModuleType):
        for name in dir(module):
            getattr(module, name)
"""


def files_of(folder: str) -> set[str]:
    """Paths of what git tracks below `folder`, relative to the root of the repository."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(listed.split())


def require(archive: Path, wanted: Iterable[str], names: Iterable[str]) -> None:
    missing = sorted(set(wanted) - set(names))
    if missing:
        sys.exit(f"{archive.name} lacks {', '.join(missing)}")


def check_contents(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    require(sdist, {"CHANGELOG.md", "LICENSE", "Makefile", "README.md"}.union(*map(files_of, SOURCES)), names)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    require(wheel, files_of("spmdir"), names)
    others = [name for name in names if not name.startswith(("spmdir/", "spmdir-"))]
    if others:
        sys.exit(f"{wheel.name} has {', '.join(others)}")


def check_use(wheel: Path, folder: Path) -> None:
    """Install `wheel` into a new environment, whose dependencies are this one's, and use its tools and public names."""
    venv.create(folder / "env")
    python, binaries = str(folder / "env/bin/python"), folder / "env/bin"
    pip = [sys.executable, "-m", "pip", "--python", python]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        if done.returncode:
            sys.exit(f"{' '.join(command)} fails in a fresh environment\n{done.stdout}")
        return done.stdout

    run(*pip, "install", "--quiet", "--no-deps", str(wheel))
    home = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (home / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    run(*pip, "check")
    used = run(python, "-c", "import spmdir; print(spmdir.__file__)").strip()
    if not Path(used).is_relative_to(home):
        sys.exit(f"the fresh environment uses {used}, not the wheel")
    run(python, "-c", USE_ALL_NAMES)
    run(
        str(binaries / "spmd-opt"),
        str(ROOT / "examples/mlp.mlir"),
        "--propagate",
        "--insert-reshard",
        "--lower-reshard",
        "-o",
        "parts",
    )
    print(run(str(binaries / "spmd-run"), "parts", "--check"), end="")


def main(folder: str) -> None:
    [sdist], [wheel] = Path(folder).glob("*.tar.gz"), Path(folder).glob("*.whl")
    check_contents(sdist, wheel)
    with tempfile.TemporaryDirectory() as scratch:
        check_use(wheel.resolve(), Path(scratch))
    print(f"{sdist.name} and {wheel.name} have all their files, and the wheel works in a fresh environment")


if __name__ == "__main__":
    main(sys.argv[1])
