"""`import spmdir` is cheap, and every public name is there when asked for."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import spmdir


@pytest.mark.parametrize("name", spmdir.__all__)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(spmdir, name)
    assert (value if name == "R" else value.__doc__) and name in dir(spmdir)


FUNCTIONS = [name for name in spmdir.__all__ if inspect.isfunction(getattr(spmdir, name))]
VALUES = [name for name in spmdir.__all__ if attrs.has(getattr(spmdir, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_documentation_of_a_function_names_its_parameters_and_shows_a_call(name: str) -> None:
    function = getattr(spmdir, name)
    text = inspect.getdoc(function) or ""
    assert entries(text, "Args") == list(inspect.signature(function).parameters)
    assert entries(text, "Raises")
    assert f"spmdir.{name}(" in text.partition("Example:")[2]


@pytest.mark.parametrize("name", VALUES)
def test_the_documentation_of_a_value_names_its_fields(name: str) -> None:
    kind = getattr(spmdir, name)
    fields = {field.name for field in attrs.fields(kind) if not field.name.startswith("_")}
    assert fields <= set(entries(inspect.getdoc(kind) or "", "Attributes"))


def entries(text: str, section: str) -> list[str]:
    """Return the names that a section of a docstring explains, in order."""
    found = re.search(rf"^{section}:\n((?: .*\n?|\n)*)", text, re.MULTILINE)
    names = re.findall(r"^    (\w[\w, ]*):", found[1], re.MULTILINE) if found else []
    return [name for group in names for name in group.split(", ")]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'spmdir' has no attribute 'partition'"):
        _ = getattr(spmdir, "partition")  # noqa: B009  # a type checker rejects spmdir.partition


def test_type_checkers_see_the_names_that_there_are_where_they_are() -> None:
    tree = ast.parse(Path(spmdir.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == spmdir._HOMES  # pyright: ignore[reportPrivateUsage]


def test_placements_have_the_short_names_of_the_ir() -> None:
    assert [str(placement) for placement in (spmdir.R, spmdir.S(0), spmdir.P("sum"))] == ["R", "S(0)", "P(sum)"]
    assert spmdir.parse_placement("S(1)") == spmdir.S(1)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import spmdir", ("torch", "xdsl", "lark")),
        (
            "import os, spmdir.tools.spmd_opt as tool; tool.main(['examples/mlp.mlir', '-o', os.devnull])",
            ("torch", "lark", "spmdir.rules"),
        ),
        (
            "import spmdir.core.placement.call, spmdir.core.placement.sharding, spmdir.rules, spmdir.search.solve",
            ("torch", "xdsl"),
        ),
        ("import spmdir; spmdir.parse, spmdir.run_passes, spmdir.plan_reshard, spmdir.comm_report", ("torch",)),
    ],
)
def test_nothing_is_imported_that_is_not_used(statement: str, absent: tuple[str, ...]) -> None:
    program = f"import sys\n{statement}\nprint(*[name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == ""
