"""`import spmdir` is cheap, and every public name is there when asked for."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import attrs
import pytest
import torch

import spmdir
from spmdir.core import errors
from spmdir.runtime.parallel_options import ChosenOptions
from tests.public_names import SUBMODULES, home_of, names_of, public_names

NAMES = public_names()
FUNCTIONS = [name for name, value in NAMES.items() if inspect.isfunction(value)]
VALUES = [name for name, value in NAMES.items() if attrs.has(value)]  # type: ignore


def test_the_package_itself_has_at_most_thirty_four_names() -> None:
    assert len([name for name in dir(spmdir) if not name.startswith("__")]) <= 34
    assert {name for name in dir(spmdir) if not name.startswith("__")} == {*names_of(spmdir), *SUBMODULES}


@pytest.mark.parametrize("submodule", SUBMODULES)
def test_a_submodule_offers_its_names_and_no_file_of_its_own_hides_one(submodule: str) -> None:
    module = getattr(spmdir, submodule)
    assert module.__doc__ and {*names_of(module)} <= {*dir(module)}
    folder = Path(spmdir.__file__).parent / submodule
    assert not {*names_of(module)} & {path.stem for path in folder.glob("*")}


def test_a_public_value_has_one_public_name() -> None:
    homes: dict[int, list[str]] = {}
    for name, value in NAMES.items():
        homes.setdefault(id(value), []).append(name)
    assert [names for names in homes.values() if len(names) > 1] == [["SpmdirError", "errors.SpmdirError"]]
    last = [name.rpartition(".")[2] for name in NAMES]
    assert {name for name in last if last.count(name) > 1} == {"SpmdirError"}


def test_every_error_that_the_package_defines_is_public() -> None:
    defined = {value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)}
    assert defined == {value for value in NAMES.values() if inspect.isclass(value) and issubclass(value, Exception)}


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name: str) -> None:
    assert NAMES[name] if name == "R" else NAMES[name].__doc__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_takes_and_returns_public_types(name: str) -> None:
    function: Any = NAMES[name]
    texts = [text for text in inspect.get_annotations(function).values() if isinstance(text, str)]
    private = [one for text in texts for one in types_in(text, home_of(function)) if one not in NAMES.values()]
    assert not private, f"spmdir.{name} shows {', '.join(one.__qualname__ for one in private)}"


def types_in(text: str, module: ModuleType) -> Iterator[type]:
    """Yield the classes of spmdir that an annotation names, in aliases too."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Name):
            yield from classes_in(vars(module).get(node.id) or imported_for_types(module).get(node.id))


def classes_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, str):
        yield from ()
    elif get_args(annotation):
        for argument in get_args(annotation):
            yield from classes_in(argument)
    elif inspect.isclass(annotation) and annotation.__module__.startswith("spmdir."):
        yield annotation


def imported_for_types(module: ModuleType) -> dict[str, object]:
    """Return what a module imports for its annotations alone, by name."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    pairs = [(str(node.module), alias.name) for node in nodes for alias in node.names]
    return {name: getattr(import_module(home), name, None) for home, name in pairs if home.startswith("spmdir.")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_documentation_of_a_function_names_its_parameters_and_shows_a_call(name: str) -> None:
    function: Any = NAMES[name]
    text = inspect.getdoc(function) or ""
    assert entries(text, "Args") == list(inspect.signature(function).parameters)
    assert entries(text, "Raises")
    assert f"spmdir.{name}(" in text.partition("Example:")[2]


@pytest.mark.parametrize("name", VALUES)
def test_the_documentation_of_a_value_names_its_fields(name: str) -> None:
    kind: Any = NAMES[name]
    fields = {field.name for field in attrs.fields(kind) if not field.name.startswith("_")}
    assert fields <= set(entries(inspect.getdoc(kind) or "", "Attributes"))


def test_the_documentation_of_the_options_names_each() -> None:
    assert entries(inspect.getdoc(spmdir.ParallelOptions) or "", "Attributes") == [
        *spmdir.ParallelOptions.__annotations__
    ]
    assert [field.name for field in attrs.fields(ChosenOptions)] == [*spmdir.ParallelOptions.__annotations__]


@pytest.mark.parametrize("name", ["parallelize", "shard_module"])
def test_the_front_doors_take_the_same_arguments_in_one_order(name: str) -> None:
    parameters = inspect.signature(getattr(spmdir, name)).parameters
    assert [*parameters][:4] == ["model", "mesh", "plan", "example_inputs"]
    assert parameters["options"].annotation == "Unpack[ParallelOptions]"


def test_what_takes_a_program_has_the_same_order() -> None:
    assert [*inspect.signature(spmdir.import_fx).parameters][:4] == ["program", "mesh", "plan", "example_inputs"]
    assert [*inspect.signature(spmdir.tensor_parallel).parameters][:3] == ["program", "mesh", "plan"]
    assert [*inspect.signature(spmdir.placement.sharding_plan).parameters] == ["model", "mesh", "plan"]


def test_an_option_that_there_is_not_is_an_error() -> None:
    with pytest.raises(spmdir.SpmdirError, match=r"unknown option 'cach'; expected .*; did you mean 'cache'\?"):
        spmdir.parallelize(torch.nn.Linear(2, 2), spmdir.Mesh({"dp": 1}), cach="x")  # type: ignore


def entries(text: str, section: str) -> list[str]:
    """Return the names that a section of a docstring explains, in order."""
    found = re.search(rf"^{section}:\n((?: .*\n?|\n)*)", text, re.MULTILINE)
    names = re.findall(r"^    (\w[\w, ]*):", found[1], re.MULTILINE) if found else []
    return [name for group in names for name in group.split(", ")]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'spmdir' has no attribute 'partition'"):
        _ = getattr(spmdir, "partition")  # noqa: B009  # a type checker rejects spmdir.partition


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("explain", "; it is spmdir.report.explain"),
        ("UnsupportedError", "; it is spmdir.errors.UnsupportedError"),
        ("paralelize", "; did you mean 'parallelize'?"),
    ],
)
def test_a_name_of_another_module_or_spelt_otherwise_is_explained(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'{re.escape(hint)}"):
        getattr(spmdir, name)


def test_placements_have_the_short_names_of_the_ir() -> None:
    assert [str(placement) for placement in (spmdir.R, spmdir.S(0), spmdir.P("sum"))] == ["R", "S(0)", "P(sum)"]
    assert spmdir.placement.parse_placement("S(1)") == spmdir.S(1)


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
        ("import spmdir; spmdir.parse, spmdir.run_passes, spmdir.plan_reshard, spmdir.report.comm_report", ("torch",)),
    ],
)
def test_nothing_is_imported_that_is_not_used(statement: str, absent: tuple[str, ...]) -> None:
    program = f"import sys\n{statement}\nprint(*[name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == ""
