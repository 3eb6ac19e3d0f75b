"""`spmd-translate`: from exported programs to text, and from text to Python that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spmdir.dialects import ir
from spmdir.simulator.simulate import run_single
from spmdir.tools import spmd, spmd_translate
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime.parallelize_cases import STAR, STAR_REWRITES

PROGRAM = """\
spmd.mesh @mesh <dp = 1, tp = 2>

func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mm(%x, %w) : tensor<4x6xf32>
  %1 = spmd.constant value "0000803f00000040000040400000804000a0a0400000c040" : tensor<6xf32>
  %2 = aten.add.Tensor(%0, %1) : tensor<4x6xf32>
  return %2 : tensor<4x6xf32>
}
"""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(x))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    torch.export.save(torch.export.export(Model(), (torch.randn(4, 8),)), path)
    return str(path)


def test_an_exported_program_has_the_shardings_of_its_plan(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out.mlir"
    plan.write_text('out_shardings = ["dp: S(0)"]\n[shardings]\nx = "dp: S(0)"\n"*.weight" = "tp: S(0)"\n')
    arguments = ["--import-pt2", model, "--mesh", "dp=2,tp=4", "--shardings", str(plan), "-o", str(out), "--check"]
    assert spmd_translate.main([*arguments, "--no-print-debuginfo"]) == 0
    assert capsys.readouterr().err == "output 0: max relative error 0.0e+00, tolerance 7e-05\n"
    text = out.read_text()
    assert "spmd.mesh @mesh <dp = 2, tp = 4>" in text
    assert text.count("#spmd.sharding<@mesh, dp: S(0)>") == 2
    assert text.count("#spmd.sharding<@mesh, tp: S(0)>") == 1
    assert ir.print_ir(ir.parse(text)) == text


def test_an_exported_program_takes_a_recipe(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert spmd_translate.main(["--import-pt2", model, "--mesh", "dp=2", "--shardings", "fsdp"]) == 0
    assert capsys.readouterr().out.count("#spmd.sharding<@mesh, dp: S(0)>") == 3


def test_an_exported_program_keeps_the_module_paths_that_reports_use(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--import-pt2", model, "--mesh", "2x4", "-o", str(tmp_path / "out.mlir")]
    assert spmd_translate.main(arguments) == 0
    assert spmd.main(["report", str(tmp_path / "out.mlir"), "--by", "module"]) == 0
    assert "\nup " in capsys.readouterr().out
    assert spmd.main(["explain", str(tmp_path / "out.mlir"), "--at", "up"]) == 0
    assert spmd_translate.main([*arguments, "--no-print-debuginfo"]) == 0
    capsys.readouterr()
    assert spmd.main(["explain", str(tmp_path / "out.mlir"), "--at", "up"]) == 1
    assert "print them with --print-debuginfo of spmd-translate" in capsys.readouterr().err
    assert spmd.main(["explain", str(tmp_path / "out.mlir"), "nosuch"]) == 1
    assert "the name of a value begins with %" in capsys.readouterr().err


@torch.library.custom_op("translated::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halve.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Halve(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.translated.halve(x)


def test_an_op_without_a_rule_is_rejected_if_that_is_asked_for_unless_a_plug_in_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, rules = tmp_path / "halve.pt2", tmp_path / "own.rules"
    torch.export.save(torch.export.export(Halve(), (torch.randn(4),)), saved)
    rules.write_text("translated.halve(x: *) -> *    linear x\n")
    arguments = ["--import-pt2", str(saved), "--mesh", "dp=2", "--missing-rule=error"]
    assert spmd_translate.main(arguments) == 1
    assert "calls translated.halve, which has no rule" in capsys.readouterr().err
    assert spmd_translate.main([*arguments, "--load-plugin", str(rules)]) == 0
    assert "translated.halve(%x)" in capsys.readouterr().out


PLUGIN = """\
import attrs
from spmdir.core.placement.shards import ShardPlacement

@attrs.frozen
class Turned(ShardPlacement):
    text = "Turned({dim})"
    dim: int

    def ranges(self, size, count, index):
        step = size // count
        return ((size - (index + 1) * step, size - index * step),)
"""


def test_a_plug_in_is_loaded_before_a_program_is_emitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin, program = tmp_path / "turned.py", tmp_path / "in.mlir"
    plugin.write_text(PLUGIN)
    program.write_text(
        "spmd.mesh @mesh <tp = 2>\n"
        "func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<4xf32> {\n"
        "  %y = spmd.slice %x on [tp] dim 0 : tensor<4xf32> <tp: Turned(0)>\n  return %y : tensor<4xf32>\n}\n"
    )
    assert spmd_translate.main(["--emit-fx", str(program)]) == 1
    assert "unknown placement 'Turned(0)'" in capsys.readouterr().err
    assert spmd_translate.main(["--emit-fx", str(program), "--load-plugin", str(plugin)]) == 0
    assert "torch.ops.aten.slice.Tensor(x, 0, 2, 4)" in capsys.readouterr().out


SUMMED = """
spmd.mesh @mesh <tp = 2>
func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>})
    -> (tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.neg(%x) : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
FORGETS = """
from dataclasses import dataclass

from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter


@dataclass(frozen=True)
class Forgets(ModulePass):
    name = "forgets"

    def apply(self, ctx, op):
        for old in [child for child in op.walk() if child.name == "aten.neg"]:
            Rewriter.replace_op(old, [], [old.operands[0]])
"""


def test_a_program_is_finished_by_the_pass_of_a_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "forgets.py").write_text(FORGETS)
    (tmp_path / "in.mlir").write_text(SUMMED)
    pipeline = ["-p", "forgets,propagate,insert-reshard,lower-reshard,localize"]
    assert emitted(tmp_path, capsys, "forgets.py", *pipeline).count("aten.neg") == 0
    assert emitted(tmp_path, capsys, "forgets.py").count("aten.neg") == 1


def test_a_program_is_finished_by_the_rewrite_and_the_collective_of_a_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "star.py").write_text(STAR)
    (tmp_path / "star.rewrites").write_text(STAR_REWRITES)
    (tmp_path / "in.mlir").write_text(SUMMED)
    found = emitted(tmp_path, capsys, "star.py")
    assert "_c10d_functional.all_gather_into_tensor" in found and "_c10d_functional.all_reduce" not in found


def emitted(tmp_path: Path, capsys: pytest.CaptureFixture[str], plugin: str, *arguments: str) -> str:
    """Return what `--emit-fx` prints of `in.mlir` with a plug-in."""
    program = ["--emit-fx", str(tmp_path / "in.mlir"), "--load-plugin", str(tmp_path / plugin)]
    assert spmd_translate.main([*program, *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: one of the arguments --import-pt2 --import-rank --emit-fx --export-sdy --import-sdy is required"),
        (
            ["--import-pt2", "missing.pt2", "--mesh", "dp=2"],
            "error: cannot read 'missing.pt2': no such file; expected a .pt2 archive: correct the path",
        ),
        (["--import-pt2", "MODEL"], "error: --import-pt2 requires --mesh"),
        (["--import-rank", "MODEL"], "error: --import-rank requires --mesh"),
        (
            ["--import-rank", "MODEL", "--mesh", "dp=2", "--group", "3tp"],
            "error: argument --group: '3tp' has no",
        ),
        (["--import-rank", "MODEL", "--mesh", "dp=2", "--rank", "2"], "error: rank is 2; expected 0 to 1"),
        (["--import-pt2", "MODEL", "--mesh", "dp"], "error: 'dp' is not a mesh axis; expected name=size, as in dp=2"),
        (["--import-pt2", "MODEL", "--mesh", "dp=2,dp=2"], "error: mesh @mesh names an axis twice"),
        (["--import-pt2", __file__, "--mesh", "dp=2"], f"error: cannot load '{__file__}': "),
        (
            ["--import-pt2", "MODEL", "--mesh", "dp=2,tp=2", "--shardings", "fsdp(dp)*tp"],
            "error: tp finds no layers to shard in Model",
        ),
        (["--import-pt2", "MODEL", "--mesh", "dp=2", "--shardings", "fsdb"], "error: 'fsdb' is not a recipe; expected"),
        (["--import-pt2", "MODEL", "--mesh", "dp=2", "--shardings", "fsdp.toml"], "error: cannot read 'fsdp.toml'"),
        (["--emit-fx", "MODEL"], "error: 'MODEL' is a zip archive; expected text; if torch.export.save wrote it"),
        (["--emit-fx", "IN", "--rank", "2"], "error: rank 2 is not in the mesh of 2 ranks; expected 0 to 1"),
        (["--emit-fx", "IN", "--rank", "9" * 5000], f"error: argument --rank: '{'9' * 59}… is not a rank; expected"),
        (
            ["--import-pt2", "MODEL", "--mesh", "dp=2", "--shardings", "PLAN"],
            "PLAN:3:1: error: sharding is given for 'w'",
        ),
    ],
)
def test_wrong_arguments_are_rejected_in_one_line(
    arguments: list[str], message: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.mlir").write_text(PROGRAM)
    (tmp_path / "plan.toml").write_text('[shardings]\n\nw = "dp: S(0)"\n')
    paths = {"MODEL": model, "IN": str(tmp_path / "in.mlir"), "PLAN": str(tmp_path / "plan.toml")}
    assert spmd_translate.main([paths.get(argument, argument) for argument in arguments]) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message.replace("PLAN", paths["PLAN"]).replace("MODEL", paths["MODEL"]))
    assert captured.err.count("\n") == 1


def _run_emitted(rank: int, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    names: dict = {}
    exec(spmd_translate.emit_fx(PROGRAM, "in.mlir", rank), names)
    names["connect"]()
    return names[f"Rank{rank}"]()(x.chunk(2, 1)[rank], w.chunk(2, 0)[rank])[0]


@pytest.mark.gloo
def test_emitted_python_computes_on_real_ranks_what_one_device_computes(tmp_path: Path) -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 6)
    [expected] = run_single(ir.parse(PROGRAM), (x, w))
    for found in on_ranks(2, _run_emitted, tmp_path, x, w):
        torch.testing.assert_close(found, expected)


def test_a_program_becomes_sdy_text_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, exported = tmp_path / "in.mlir", tmp_path / "out.mlir"
    program.write_text(PROGRAM)
    assert spmd_translate.main(["--export-sdy", str(program), "-o", str(exported)]) == 0
    assert exported.read_text().startswith('sdy.mesh @mesh = <["dp"=1, "tp"=2]>\n')
    assert spmd_translate.main(["--import-sdy", str(exported)]) == 0
    assert ir.print_ir(ir.parse(PROGRAM)) == capsys.readouterr().out


def test_what_sdy_text_cannot_represent_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "in.mlir"
    program.write_text(PROGRAM.replace("tp: S(1)>}", "tp: P(max)>}"))
    assert spmd_translate.main(["--export-sdy", str(program)]) == 1
    assert "in.mlir:3:1: error: 'func.func': argument %x: P(max) on axis 'tp'" in capsys.readouterr().err
