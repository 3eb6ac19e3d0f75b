"""Texts from a stranger run no code and touch no file that the command line does not name, whatever they say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spmdir.tools import spmd, spmd_opt

CODE = "__import__('os').mkdir('MARKER')"
HEAD = "spmd.mesh @mesh <dp = 2>\n"
FUNCTION = (
    "func.func @f(%x: tensor<4xf32> {{spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}}) -> tensor<4xf32> {{\n"
    "{line}\n  return %x : tensor<4xf32>\n}}\n"
)


INSTALLED = tuple(map(os.path.realpath, (sys.prefix, sys.base_prefix, Path(spmd_opt.__file__).parents[1])))
"""Where Python reads modules from."""

_watching: list[list[str]] = []
"""Where what the process does is noted, if it is; an audit hook cannot be taken away again."""


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching or not event.startswith(("open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.dlopen")):
        return
    path = os.path.realpath(os.fsdecode(arguments[0])) if arguments and isinstance(arguments[0], (str, bytes)) else ""
    reads = event in ("open", "os.listdir", "os.scandir") and (len(arguments) < 2 or arguments[1] in ("r", "rb", None))
    itself = event == "ctypes.dlopen" and not path
    if not (itself or (reads and path.startswith(INSTALLED))):
        _watching[-1].append(path if event == "open" else f"{event} {path}")


sys.addaudithook(_note)


@pytest.fixture
def touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the files that are opened, and whatever else the process asks of the system."""
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    _watching.append(found)
    yield found
    _watching.pop()
    assert os.listdir(tmp_path) == ["given"]


def only(path: Path, touched: list[str]) -> bool:
    """Return whether nothing but the file at `path` was touched."""
    return {file for file in touched if not file.startswith("os.listdir")} <= {os.path.realpath(path)}


def test_what_a_tool_touches_is_seen(touched: list[str]) -> None:
    path = given("text", ".mlir")
    touched.clear()
    path.read_text()
    assert only(path, touched) and touched
    os.system("true")
    assert not only(path, touched)
    touched.clear()
    Path(os.devnull).read_text()
    assert not only(path, touched)


def given(text: str, suffix: str) -> Path:
    Path("given").mkdir()
    path = Path("given").absolute() / f"in{suffix}"
    path.write_text(text)
    for noted in _watching:
        noted.clear()
    return path


@pytest.mark.parametrize(
    "line",
    [
        f'  %0 = mylib.f(%x) {{a = "{CODE}"}} : tensor<4xf32>',
        '  %0 = aten.relu(%x) : tensor<4xf32> loc("/etc/passwd":1:1)',
        f'  %0 = aten.relu(%x) : tensor<4xf32> loc("{CODE}")',
        f"  %0 = aten.relu(%x) : tensor<[{CODE}]xf32>",
        "  %0 = aten.relu(%x) : tensor<4xf32> <dp: Os(0)>",
        "  %0 = aten.relu(%x) : tensor<4xf32> <dp: __import__(0)>",
        '  %0 = os.system() {command = "touch MARKER"} : tensor<4xf32>',
        '  %0 = aten.from_file() {filename = "MARKER", shared = true, size = 4, dtype = f32} : tensor<4xf32>',
        '  %0 = "builtin.f"(%x) {a = dense_resource<MARKER> : tensor<4xf32>} : (tensor<4xf32>) -> tensor<4xf32>',
        '  "func.call"() {callee = @os.system} : () -> ()',
    ],
)  # fmt: skip
def test_a_program_touches_nothing(line: str, touched: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = given(HEAD + FUNCTION.format(line=line), ".mlir")
    spmd_opt.main([str(path), "--propagate", "--print-debuginfo"])
    assert "internal error" not in capsys.readouterr().err
    assert only(path, touched)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"mylib.f(x: a) -> a  unsharded a if {CODE}", "found"),
        ("mylib.f(x: a) -> a  unsharded a if mkdir(x)", "mkdir"),
        ("mylib.f(x: a) -> a\n    local a\n    y = os.mkdir(x)\n    return y", "os.mkdir"),
        ("mylib.f(x: a) -> __import__(a)", "__import__"),
    ],
)
def test_a_rule_names_functions_of_its_tables_alone(
    text: str, message: str, touched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = given(text, ".rules")
    assert spmd_opt.main(["--load-plugin", str(path), "--list-passes"]) == 1
    assert message in capsys.readouterr().err
    assert only(path, touched)


@pytest.mark.parametrize("text", [f"a: {CODE} => x", "a: mkdir x on A => x", "a: f(x, ...) => x when f mkdir"])
def test_a_rewrite_names_collectives_alone(text: str, touched: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = given(text, ".rewrites")
    program = Path("given/in.mlir")
    program.write_text(HEAD + FUNCTION.format(line=""))
    touched.clear()
    assert spmd_opt.main([str(program), f"--fuse-collectives=rewrites={path}"]) == 1
    assert f"{path}:1:" in capsys.readouterr().err
    assert all(only(path, [file]) or only(program, [file]) for file in touched)


@pytest.mark.parametrize("value", [f'"{CODE}"', '"../../etc/passwd"', "[1]", "{import = 'os'}", "nan", "1e400"])
def test_a_topology_is_numbers_alone(value: str, touched: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = given(f"intra_bandwidth = {value}\n", ".toml")
    arguments = ["S(0)", "R", "--mesh", "2", "--shape", "4", "--no-dtensor", "--topology", str(path)]
    assert spmd.main(["plan-reshard", *arguments]) == 1
    assert "expected a number" in capsys.readouterr().err
    assert only(path, touched)
