"""Plug-ins of `spmd-opt`: passes in Python, rules as text, and errors at their place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spmdir.core.errors import ParseError, SpmdirError, SpmdirWarning
from spmdir.core.placement.base import parse_placement
from spmdir.dialects import ir
from spmdir.pipeline.pass_table import PASSES
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.plugins import load_module, load_plugin, load_plugins
from spmdir.rules.rule_set import using_rules
from spmdir.tools import spmd, spmd_opt

RENAME = '''\
from __future__ import annotations
from dataclasses import dataclass
from xdsl.dialects.builtin import StringAttr
from xdsl.passes import ModulePass

@dataclass(frozen=True)
class RenamePass(ModulePass):
    """Renames every function."""

    name = "rename"
    to: str = "g"

    def apply(self, ctx, op):
        for function in op.body.block.ops:
            function.properties["sym_name"] = StringAttr(self.to)
'''


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_pass_of_a_plugin_has_a_flag_with_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = write(tmp_path, "rename.py", RENAME)
    program = write(tmp_path, "in.mlir", "func.func @f() {\n  return\n}\n")
    assert spmd_opt.main([program, "--load-plugin", plugin, "--rename=to=h"]) == 0
    assert capsys.readouterr().out == 'func.func @h() attributes {spmd.passes = ["rename"]} {\n  return\n}\n'


def test_a_plugin_stays_within_its_run(tmp_path: Path) -> None:
    pipeline = Pipeline("rename{to=h}", plugins=[write(tmp_path, "rename.py", RENAME)])
    assert [made.name for made in pipeline.made()] == ["rename"]
    assert "rename" not in PASSES
    with pytest.raises(ParseError, match="unknown pass 'rename'"):
        Pipeline("rename")


def test_a_condition_of_a_plugin_is_one_of_its_pipelines(tmp_path: Path) -> None:
    text = "from spmdir.rewrites.rewrite_conditions import condition\n\nmine = condition('is mine')(all)\n"
    path = write(tmp_path, "conditions.py", text)
    assert Pipeline("", plugins=[path]).context().conditions["is mine"].test is all
    assert Pipeline("").context().conditions == {}


def test_a_python_plugin_brings_the_files_that_it_lists(tmp_path: Path) -> None:
    write(tmp_path, "mine.rules", "mine.relu(self: *) -> *\n")
    (plugin,) = load_plugins([write(tmp_path, "files.py", "PLUGIN_FILES = ['mine.rules']\n")])
    assert list(plugin.rules) == ["mine.relu"]
    assert "mine.relu" in Pipeline("", plugins=[plugin]).rules.names


def test_rules_of_a_plugin_replace_those_of_the_same_op(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.rules", "mine.relu(self: *) -> *\n")
    assert "mine.relu" in Pipeline(plugins=[path]).rules.names
    assert "mine.relu" not in Pipeline().rules.names


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.py", "x = (\n", "{path}:1:5: error: plug-in: '(' was never closed"),
        ("p.py", "\n1 / 0\n", "{path}:2:1: error: plug-in failed: ZeroDivisionError: division by zero"),
        ("p.rules", "\nmine.relu(self: *\n", "{path}:2:"),
        (
            "p.txt",
            "",
            "error: '{path}' is not a plug-in; expected a .rules, .rewrites or .py file, or a package",
        ),
    ],
)
def test_a_broken_plugin_is_rejected_at_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(SpmdirError) as caught:
        load_plugins([path])
    assert str(caught.value).startswith(message.format(path=path))


@pytest.mark.parametrize("name", ["missing.py", "missing.rules"])
def test_a_missing_plugin_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpmdirError, match="cannot read"):
        load_plugins([str(tmp_path / name)])


def test_rules_that_expand_into_each_other_are_rejected_at_their_place(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        "own.rules",
        "mylib.a(x: *) -> * expand *\n    return mylib.b(x)\nmylib.b(x: *) -> * expand *\n    return mylib.a(x)\n",
    )
    text = """spmd.mesh @mesh <tp = 2>
        func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8xf32> {
          %0 = mylib.a(%x) : tensor<8xf32>
          return %0 : tensor<8xf32>
        }"""
    assert spmd_opt.main([write(tmp_path, "in.mlir", text), "--load-plugin", "own.rules", "--propagate"]) == 1
    assert capsys.readouterr().err.startswith("own.rules:1:1: error: mylib.a expands into itself")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(3)", "own.py:2:1: error: plug-in failed: SystemExit: 3"),
        (
            "from xdsl.passes import ModulePass\nclass P(ModulePass):\n    pass",
            "error: the pass P of plug-in 'own.py' has no name; expected one: add",
        ),
    ],
)
def test_a_plugin_neither_ends_the_tool_nor_adds_a_pass_without_a_name(
    tmp_path, monkeypatch, capsys, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "own.py", text)
    assert spmd_opt.main(["--list-passes", "--load-plugin", "own.py"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(message)


def test_a_rule_file_that_is_no_text_is_rejected_at_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "own.rules"
    path.write_bytes(b"# one\n#\xff")
    with pytest.raises(SpmdirError, match="not UTF-8 text") as caught:
        load_plugins([str(path)])
    assert str(caught.value.location) == f"{path}:2:2"


PLACED = """\
from typing import ClassVar
import attrs
from spmdir.core.placement.shards import ShardPlacement

@attrs.frozen
class Halved(ShardPlacement):
    text: ClassVar[str] = "Halved({dim})"
    dim: int

    def ranges(self, size, count, index):
        return ((0, size),) if index == 0 else ()
"""


def test_what_a_placement_raises_is_told_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = PLACED.replace("Halved", "Startless").replace("((0, size),) if index == 0 else ()", "((), ())[count]")
    path = write(tmp_path, "startless.py", failing)
    arguments = ["Startless(0)", "S(0)", "--mesh", "4", "--shape", "8", "--load-plugin", path, "--no-dtensor"]
    assert spmd.main(["plan-reshard", *arguments]) == 1
    assert capsys.readouterr().err == (
        f"{path}:11:1: error: plug-in failed: IndexError: tuple index out of range; expected a file that Python can "
        "run: correct this line\n"
    )


def test_placements_of_a_plugin_are_made_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    path = write(tmp_path, "halved.py", PLACED)
    load_plugins([path])
    first = parse_placement("Halved(0)")
    load_plugins([str(tmp_path / "." / "halved.py")])
    assert parse_placement("Halved(0)") == first
    write(tmp_path, "halved.py", PLACED + "\n")
    load_plugins([path])
    assert type(parse_placement("Halved(0)")) is not type(first)


def test_text_that_was_read_before_a_plugin_changed_is_read_anew(tmp_path: Path) -> None:
    text = """
    spmd.mesh @mesh <tp = 2>
    func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Halved(0)>}) -> tensor<4xf32> {
      %0 = aten.relu(%x) : tensor<4xf32> <tp: Halved(0)>
      return %0 : tensor<4xf32>
    }
    """
    for version in ("", "\n"):
        load_plugins([write(tmp_path, "halved.py", PLACED + version)])
        (relu,) = (op for op in ir.parse(text).walk() if op.name == "aten.relu")
        assert relu.properties["sharding"].data[0]["tp"] == parse_placement("Halved(0)")  # type: ignore


@pytest.mark.parametrize("_", range(2))
def test_plugins_of_two_tests_may_declare_one_name(_: int, tmp_path: Path) -> None:
    load_plugins([write(tmp_path, "halved.py", PLACED)])


def test_a_plugin_that_comes_with_the_package_is_the_package_s() -> None:
    assert load_module("spmdir/placements/cyclic.py") is sys.modules["spmdir.placements.cyclic"]


def test_two_plugins_that_declare_one_name_are_rejected_at_the_second(tmp_path: Path) -> None:
    load_plugins([write(tmp_path, "one.py", PLACED.replace("Halved", "Twice"))])
    with pytest.raises(SpmdirError, match="placement 'Twice' is declared by") as caught:
        load_plugins([write(tmp_path, "two.py", PLACED.replace("Halved", "Twice"))])
    assert str(caught.value.location) == f"{tmp_path / 'two.py'}:6:1"


def test_rewrites_and_topologies_of_plugins_are_those_of_the_pipeline(tmp_path: Path) -> None:
    rewrites = write(
        tmp_path, "mine.rewrites", "slice-twice: slice (slice x on A dim d) on B dim d => slice x on A, B dim d\n"
    )
    text = "from spmdir.reshard.topology import Topology\nSLOW = Topology('slow', 1e9, 1e9, 1e-6, 0.0, 0.0, 1e9)\n"
    pipeline = Pipeline(plugins=[rewrites, write(tmp_path, "slow.py", text)], topology="slow")
    assert [rewrite.name for rewrite in pipeline.context().rewrites] == ["slice-twice"]
    (lowering,) = [made for made in pipeline.made() if made.name == "lower-reshard"]
    assert lowering.topology.name == "slow" and lowering.topology.intra_bandwidth == 1e9  # type: ignore[attr-defined]


def test_the_planner_tool_knows_the_topologies_of_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "from spmdir.reshard.topology import Topology\nSLOW = Topology('slow', 1e9, 1e9, 1e-6, 0.0, 0.0, 1e9)\n"
    options = ["--mesh", "4", "--shape", "8x8", "--no-dtensor", "--topology", "slow"]
    assert spmd.main(["plan-reshard", "S(0)", "R", *options, "--load-plugin", write(tmp_path, "slow.py", text)]) == 0
    assert "topology slow" in capsys.readouterr().out
    assert spmd.main(["plan-reshard", "S(0)", "R", *options]) == 1
    assert "'slow'" in capsys.readouterr().err


OWN_PROPAGATE = """
from dataclasses import dataclass
from spmdir.passes.propagate import PropagatePass

@dataclass(frozen=True)
class Propagate(PropagatePass):
    \"\"\"Propagates, with an option of its own.\"\"\"

    speed: int = 1
"""

SIZED = """
spmd.mesh @mesh <tp = 2>
spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %y = aten.relu(%x) : tensor<[s0]x4xf32>
  return %y : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
"""


def test_bind_sizes_decides_again_by_the_passes_of_the_pipeline(tmp_path: Path) -> None:
    plugin = write(tmp_path, "own_propagate.py", OWN_PROPAGATE)
    module = run_passes(ir.parse(SIZED), Pipeline("propagate{speed=2},bind-sizes{s0=6}", plugins=[plugin]))
    assert "tensor<6x4xf32>" in ir.print_ir(module)


def test_an_installed_plugin_is_found_by_its_name_and_by_the_name_of_its_pass(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path, "renaming_package.py", RENAME)
    info = tmp_path / "renaming-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: renaming\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[spmdir.plugins]\nrenaming = renaming_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [made.name for made in Pipeline("rename", plugins=["renaming"]).made()] == ["rename"]
    assert [plugin.name for plugin in Pipeline("rename{to=h}").plugins] == ["renaming"]
    with pytest.raises(SpmdirError, match=r"no plug-in 'renamin'.*installed are renaming; did you mean 'renaming'"):
        load_plugins(["renamin"])


def test_the_reprs_of_a_plug_in_and_of_rules_are_short_and_say_what_is_in_them(tmp_path: Path) -> None:
    own = tmp_path / "own.rules"
    own.write_text("mylib.scale(x: *, factor) -> *    linear x\n")
    assert repr(load_plugin(own)) == f"<Plugin '{own}': rules of mylib.scale>"
    rules = repr(using_rules(own))
    assert rules.startswith("<RuleSet of ") and rules.endswith(" ops, 1 of them not packaged: mylib.scale>")


def test_a_placement_named_like_a_shipped_one_is_an_error_with_both_places(tmp_path: Path):
    path = tmp_path / "own.py"
    path.write_text(
        "from spmdir.placement import ShardPlacement\n\n\nclass Cyclic(ShardPlacement):\n    text = 'Cyclic({dim})'\n"
    )
    with pytest.raises(SpmdirError, match=r"own\.py:4:1: .* spmdir\.placements\.cyclic, which comes with"):
        load_plugin(path)


EDGES = """
import attrs
from typing import ClassVar
from spmdir.placement import Edge, Placement


@attrs.frozen
class NAME(Placement):
    text: ClassVar[str] = "NAME"

    def edges(self):
        yield Edge(lambda x, group: x, target="shard")
        yield Edge(lambda x, group: x, EDGE)
"""


@pytest.mark.parametrize(
    ("name", "edge", "why"),
    [
        ("Shadowing", 'target="S(0)"', r"the earlier edge to 'shard' \(.*own\.py:12:1\) always takes precedence"),
        ("Nowhere", 'source="Nonesuch"', "its end 'Nonesuch' is not a placement"),
        ("EndlessEdge", "", "it has neither a `target` nor a `source`"),
        ("Own", 'target="Own"', "both its ends are Own"),
    ],
)
def test_an_edge_that_is_never_taken_is_told_once(tmp_path: Path, name: str, edge: str, why: str):
    path = tmp_path / "own.py"
    path.write_text(EDGES.replace("NAME", name).replace("EDGE", edge))
    with pytest.warns(SpmdirWarning, match=why) as told:
        load_plugins([path, str(path)])
    assert [str(warning.message).partition(": ")[0] for warning in told] == [f"{path}:13:1"]
