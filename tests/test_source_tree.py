"""The source tree: imports point one way between packages and between files, and a file name means one thing.

Imports under TYPE_CHECKING and inside functions count; the lazy names of spmdir/__init__.py are texts and do not.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = (
    "core", "placements", "rules", "reshard", "search", "dialects", "plugins", "passes", "torch_interop", "lowering",
    "simulator", "importer", "runtime", "report", "checking", "__init__", "tools",
    "universe",
)  # fmt: skip
"""The packages of spmdir; each imports from those before it alone. `__init__` is spmdir itself: its names."""

SAME_NAME = {
    "arguments": "checks of Python arguments in core; the arguments of aten ops in dialects",
    "collectives": "for each collective its spec in reshard, its op in dialects, its emitter in lowering",
    "conditions": "of symbolic sizes in core; under which the planner's steps are legal in reshard",
    "exchange": "the generalised all-to-all: its plan in reshard, its emitter in lowering",
    "expressions": "of symbolic sizes in core; of the rule language in rules",
    "halo": "the halo exchange: its op in dialects, its emitter in lowering",
    "inline": "calls between functions in passes; values of a graph in lowering",
    "locations": "the call stacks of fx nodes in importer; the text of locations in dialects",
    "parser": "of symbolic sizes in core; of rules in rules",
    "reductions": "what partial placements reduce by in core; how reductions are emitted in lowering",
    "replacement": "of collectives by rewrites in passes; of ops by expansions in rules",
    "values": "of the IR in dialects; of torch in torch_interop; random ones in checking",
}
"""Names that several files of spmdir have, and what each of the files is."""


@cache
def imports() -> dict[str, set[str]]:
    """Module of spmdir → the modules of spmdir that it imports."""
    files = {module_name(path): path for path in (ROOT / "spmdir").rglob("*.py")}
    return {name: {found for found in imported(path, files) if found != name} for name, path in files.items()}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else node.module


def package_of(name: str) -> str:
    return [*name.split("."), "__init__"][1]


def test_the_order_names_every_package() -> None:
    assert {package_of(name) for name in imports()} == set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_those_before_it(package: str) -> None:
    allowed = ORDER[: ORDER.index(package) + 1]
    for name, targets in imports().items():
        if package_of(name) == package:
            wrong = sorted(target for target in targets if package_of(target) not in allowed)
            assert not wrong, f"{name} imports {', '.join(wrong)}"


@pytest.mark.parametrize("package", [name for name in ORDER if (ROOT / "spmdir" / name).is_dir()])
def test_a_package_says_what_it_may_import_and_where_to_start_reading(package: str) -> None:
    folder = ROOT / "spmdir" / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    start = re.search(r"^May import: .*^Start with (.*)", text, re.MULTILINE | re.DOTALL)
    assert start, f"spmdir/{package}/__init__.py says neither"
    for file in re.findall(r"[\w/]+\.(?:py|rules)", start[1]):
        assert (folder / file).exists(), f"spmdir/{package} has no {file}"


def test_no_files_import_each_other() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_files_of_one_name_are_listed_with_what_each_is() -> None:
    counts = Counter(path.stem for path in (ROOT / "spmdir").rglob("*.py") if path.stem != "__init__")
    assert {stem for stem, count in counts.items() if count > 1} == set(SAME_NAME)


def test_tests_mirror_the_packages() -> None:
    """Beside the mirror stand golden files, the pages, the distribution, and what cuts across packages."""
    across = {"cuda", "docs", "fuzz", "golden", "models", "packaging", "reference"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("**/*.py"))}
    assert folders - across - {"golden"} <= set(ORDER)
