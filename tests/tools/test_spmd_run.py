"""`spmd-run`: the outputs of all ranks against those of one device."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from spmdir.core.errors import SpmdirErrors
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator import output_error
from spmdir.simulator.interleaved import run_interleaved
from spmdir.tools import spmd_run

PROGRAM = """\
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<5x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
             %mask: tensor<5x6xi1>) -> tensor<5x6xf32> {
  %0 = aten.mm(%x, %w) : tensor<5x6xf32> <dp: S(0), tp: P(sum)>
  %1 = aten.mul.Tensor(%0, %mask) : tensor<5x6xf32>
  return %1 : tensor<5x6xf32>
}
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "in.mlir"
    path.write_text(PROGRAM)
    return str(path)


def test_an_output_without_a_finite_element_passes_where_its_infinities_and_nan_agree(
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = torch.tensor([torch.inf, -torch.inf, torch.nan])
    spmd_run.report([right.clone()], [right], None)
    assert capsys.readouterr().out == "output 0: no finite element, infinities and NaN agree\n"
    with pytest.raises(SpmdirErrors, match="output 0 differs from one device by inf"):
        spmd_run.report([right.flip(0)], [right], None)


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_a_correct_program_passes_and_each_output_shows_its_error(
    program: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spmd_run.main([program, "--check", "--dtype", dtype]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("output 0: max relative error ")
    assert (captured.out.count("\n"), captured.err) == (1, "")


def test_the_rest_of_the_pipeline_that_is_given_finishes_a_program(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = "propagate,insert-reshard,lower-reshard,fuse-collectives{only=%s},localize"
    assert spmd_run.main([program, "--check", "-p", steps % "exchange"]) == 0
    assert spmd_run.main([program, "--check", "-p", steps % "none"]) == 1
    assert "error: unknown rewrite 'none'" in capsys.readouterr().err


def test_ranks_run_in_as_many_orders_as_are_asked_for(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def noting(*given: Any, order: int, **others: Any) -> list[Any]:
        ran.append(order)
        return run_interleaved(*given, order=order, **others)

    monkeypatch.setattr("spmdir.simulator.interleaved.run_interleaved", noting)
    assert spmd_run.main([program, "--check", "--interleavings", "2"]) == 0
    assert ran == [0, 1]


def test_an_error_above_the_tolerance_gives_status_1(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert spmd_run.main([program, "--check", "--tolerance", "0"]) == 1
    assert "error: output 0 differs from one device by " in capsys.readouterr().err


def test_torch_logs_nothing_of_an_op_that_it_rejects(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
    text = PROGRAM.replace("aten.mul.Tensor(%0, %mask)", 'aten.gelu(%0) {approximate = "no"}')
    (tmp_path / "in.mlir").write_text(text)
    with caplog.at_level("ERROR", "torch"):
        assert spmd_run.main([str(tmp_path / "in.mlir")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert caplog.records == []


def test_without_check_the_outputs_are_printed(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert spmd_run.main([program]) == 0
    assert capsys.readouterr().out.startswith("tensor(")


def test_malformed_text_is_a_located_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(PROGRAM.replace("dp: S(0)", "pp: S(0)"))
    assert spmd_run.main([str(path), "--check"]) == 1
    assert capsys.readouterr().err.startswith(f"{path}:3:1: error: ")


def test_inputs_depend_on_the_seed_alone_and_have_the_types_of_the_program() -> None:
    module = ir.parse(PROGRAM)
    first, again, other = (spmd_run.random_inputs(module, seed, None)[0] for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["x"], other["x"])
    assert [tensor.dtype for tensor in first.values()] == [torch.float32, torch.float32, torch.bool]
    assert spmd_run.random_inputs(module, 0, "f64")[0]["x"].dtype == torch.float64


def test_the_error_is_relative_to_the_largest_element() -> None:
    assert output_error.relative_error(torch.tensor([10.0, 0.0]), torch.tensor([10.0, 0.1])) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0])),
        (torch.tensor([1]), torch.tensor([1.0])),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, torch.nan])),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.nan])),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1]), torch.tensor([2])),
        (3, 4),
    ],
)
def test_outputs_that_differ_in_kind_or_values_fail(found: object, right: object) -> None:
    with pytest.raises(SpmdirErrors, match="output 0 differs"):
        spmd_run.report([found], [right], None)


@pytest.mark.parametrize(
    "value",
    [torch.tensor([1.0, torch.nan, -torch.inf]), torch.zeros(0), torch.zeros(2), torch.tensor([True]), 3],
)
def test_an_output_agrees_with_itself(value: object) -> None:
    assert output_error.relative_error(value, value) == 0.0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("99999999999999999999999", "'func.func': too many elements of a tensor: found 99999999999999999999999"),
        ("9999999999999", "not enough memory for argument 0 of shape [9999999999999]"),
    ],
)
def test_inputs_that_no_memory_holds_are_rejected_at_their_function(tmp_path, capsys, shape: str, message: str) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(
        f"spmd.mesh @mesh <tp = 2>\nfunc.func @f(%x: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{\n"
        f"  return %x : tensor<{shape}xf32>\n}}"
    )
    assert spmd_run.main([str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"{path}:2:1: error: {message}")


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--seed", "99999999999999999999", "is not a seed; expected an integer of 64 bits"),
        ("--seed", "9" * 5000, "… is not a seed; expected an integer of 64 bits"),
        ("--seed", "x", "'x' is not a seed"),
        ("--interleavings", "-1", "invalid number of orders '-1'; expected a number from 0 to 1000000000"),
        ("--tolerance", "nan", "'nan' is not a tolerance; expected a number from 0 on"),
        ("--tolerance", "-1", "'-1' is not a tolerance; expected a number from 0 on"),
    ],
)
def test_an_option_that_is_no_such_number_is_rejected(option: str, text: str, message: str, capsys) -> None:
    assert spmd_run.main([option, text]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error) < 200


def test_complex_inputs_are_widened_like_real_ones() -> None:
    module = ir.parse(
        "spmd.mesh @mesh <tp = 2>\nfunc.func @f(%x: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {\n"
        "  return %x : tensor<4xcomplex<f32>>\n}"
    )
    assert spmd_run.random_inputs(module, 0, "f64")[0]["x"].dtype == torch.complex128


INEXACT = """\
spmd.mesh @mesh <tp = 4>
func.func @main(%x: tensor<16x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x32xf32> {
  %y = spmd.convert %x : tensor<16x32xf32> <>
  return %y : tensor<16x32xf32>
}
"""


def test_arguments_in_a_lower_precision_are_compared_as_ranks_hold_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(INEXACT.replace("Quantised", "Shadow(bf16)"))
    assert spmd_run.main([str(path), "--check"]) == 0
    assert "output 0: max relative error 0.0e+00" in capsys.readouterr().out


def test_the_declared_error_of_an_inexact_placement_passes_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(INEXACT)
    assert spmd_run.main([str(path), "--check"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    step = re.fullmatch(r"Quantised -> R at .*in.mlir:3:3 is off by (.*) \(max\); at most 3.9e-03 is declared", first)
    assert step is not None and 1e-5 < float(step[1]) < 3.9e-3
    whole = re.fullmatch("output 0: max relative error (.*), without lossy steps (.*), tolerance 1e-04", second)
    assert whole is not None and float(whole[1]) > 1e-3 and float(whole[2]) < 1e-6
    assert spmd_run.main([str(path), "--check", "--tolerance", "1e-4"]) == 1
    assert "error: output 0 differs from one device by " in capsys.readouterr().err


PLACED = """\
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Own(0)>}) -> tensor<4x3xf32> {
  %0 = aten.relu(%x) : tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
"""
SHARD = """\
import attrs
from spmdir.placement import ShardPlacement

@attrs.frozen
class Own(ShardPlacement):
    text = "Own({dim})"
    dim: int
    def ranges(self, size, count, index):
        half = size // count
        return ((index * half, (index + 1) * half),)
"""
OTHER = """\
import attrs
from spmdir.placement import Edge, Placement

@attrs.frozen
class Own(Placement):
    text = "Own"
    def local_type(self, shape, dtype, count, index):
        return shape, dtype
    def distribute(self, tensor, count, noise):
        return [tensor] * count
    def collect(self, shards, shape):
        return shards[0]
    def send(self, x, group):
        return x
    def edges(self):
        yield Edge(self.send, target="R", by="broadcast")
"""


WRONG = {
    "Endless": (SHARD, "half = size", "return self.ranges(size, count, index)", 9, "RecursionError"),
    "Float": (SHARD, "half = size //", "half = size /", 8, r"`ranges` of Float(0) gives ((0.0, 2.0),); expected"),
    "Ending": (OTHER, "return x", "raise SystemExit(0)", 14, "the edge from Ending to R fails on"),
    "Few": (
        OTHER,
        "[tensor] * count",
        "[tensor]",
        9,
        "returns 1 tensors; expected a list of 2 tensors, one for each",
    ),
    "Number": (OTHER, "[tensor] * count", "5", 9, "returns 5; expected a list of 2 tensors, one for each rank"),
    "Types": (OTHER, "dtype\n", "'f16' if index else 'f64'\n", 7, "ranks have tensor<4x3xf16>, tensor<4x3xf64>"),
    "Unknown": (OTHER, '"broadcast"', '"nosuch"', 13, "unknown collective 'nosuch'"),
    "Large": (OTHER, '"broadcast"', '"broadcast", bytes=lambda *a: 10**400', 16, "`bytes` returns 1000000"),
}
"""Name of a placement → its file, what of it is replaced by what, the line of the error, and what that says."""


@pytest.mark.parametrize("name", WRONG)
def test_what_a_placement_declares_wrongly_is_an_error_at_its_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, before, after, line, message = WRONG[name]
    program, plugin = tmp_path / "in.mlir", tmp_path / "own.py"
    program.write_text(PLACED.replace("Own(0)", "Own(0)" if text is SHARD else "Own").replace("Own", name))
    plugin.write_text(text.replace(before, after, 1).replace("Own", name))
    assert spmd_run.main([str(program), "--load-plugin", str(plugin), "--check"]) == 1
    found = capsys.readouterr().err
    assert found.startswith(f"{plugin}:{line}:1: error: ")
    assert message in found


def test_a_placement_that_does_not_shard_may_have_a_dimension(tmp_path: Path) -> None:
    program, plugin = tmp_path / "in.mlir", tmp_path / "own.py"
    program.write_text(PLACED.replace("Own", "Along"))
    plugin.write_text(OTHER.replace('"Own"', '"Along({dim})"\n    dim: int').replace("Own", "Along"))
    assert spmd_run.main([str(program), "--load-plugin", str(plugin)]) == 0


def test_another_dtype_than_a_local_form_names_is_an_error_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "cumsum.mlir"
    program.write_text(
        """spmd.mesh @mesh <tp = 2>
func.func @f(%x: tensor<7x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<7x6xf32> {
  %0 = aten.cumsum(%x) {dim = 0} : tensor<7x6xf32>
  return %0 : tensor<7x6xf32>
}
"""
    )
    assert spmd_run.main([str(program), "--check"]) == 0
    assert spmd_run.main([str(program), "--check", "--dtype", "f64"]) == 1
    assert "omit --dtype" in capsys.readouterr().err


NORM = """\
import torch
from torch import Tensor


@torch.library.custom_op("value_check::norm", mutates_args=())
def norm(x: Tensor) -> Tensor:
    return x / x.abs().sum(-1, keepdim=True)


@norm.register_fake
def _(x):
    return torch.empty_like(x)
"""
WRONG_RULE = "value_check.norm(x: *b d) -> *b d\n"
RIGHT_RULE = "value_check.norm(x: *b d) -> *b d    unsharded d\n"
NORMED = """\
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<4x8xf32> {
  %sine = aten.sin(%x) : tensor<4x8xf32>
  %normed = value_check.norm(%sine) : tensor<4x8xf32> loc("layers.3.norm"("model.py":12:1))
  %twice = aten.add.Tensor(%normed, %normed) : tensor<4x8xf32>
  return %twice : tensor<4x8xf32>
}
"""


def test_the_first_op_whose_values_differ_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"norm.py": NORM, "wrong.rules": WRONG_RULE, "right.rules": RIGHT_RULE, "in.mlir": NORMED}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    options = [str(tmp_path / "in.mlir"), "--check=all", "--load-plugin", str(tmp_path / "norm.py")]
    assert spmd_run.main([*options, "--load-plugin", str(tmp_path / "right.rules")]) == 0
    assert re.fullmatch(r"[0-9]+ values are those of one device\n", capsys.readouterr().out)
    assert spmd_run.main([*options, "--load-plugin", str(tmp_path / "wrong.rules")]) == 1
    error = capsys.readouterr().err
    assert re.search(
        r"error: %normed = value_check\.norm in layers\.3\.norm differs from one device by [0-9.e+-]+, first on rank 0 "
        r"of 4 ranks; expected at most 1e-04: its operands are right, so check the rule or the placements of this op",
        error,
    )


def test_all_values_of_a_correct_program_are_those_of_one_device(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spmd_run.main([program, "--check=all", "--dtype", "f64"]) == 0
    assert "values are those of one device" in capsys.readouterr().out


def test_values_of_a_localized_program_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "local.mlir"
    pipeline = "propagate,insert-reshard,lower-reshard,localize"
    path.write_text(ir.print_ir(run_passes(ir.parse(PROGRAM), pipeline)))
    assert spmd_run.main([str(path), "--check=all"]) == 1
    assert "a localized program has no values of one device to compare with" in capsys.readouterr().err


LARGE = """\
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<4x8xf32> {
  %large = aten.mul.Tensor(%x) {other = 1.0e+09} : tensor<4x8xf32>
  %normed = value_check.norm(%large) : tensor<4x8xf32>
  %positive = aten.gt.Scalar(%normed) {other = 0.2} : tensor<4x8xi1>
  %result = aten.where.self(%positive, %normed, %large) : tensor<4x8xf32>
  return %result : tensor<4x8xf32>
}
"""


def test_a_wrong_op_of_large_operands_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"norm.py": NORM, "wrong.rules": WRONG_RULE, "in.mlir": LARGE}.items():
        (tmp_path / name).write_text(text)
    plugins = [option for name in ("norm.py", "wrong.rules") for option in ("--load-plugin", str(tmp_path / name))]
    assert spmd_run.main([str(tmp_path / "in.mlir"), "--check=all", *plugins]) == 1
    assert "%normed = value_check.norm differs" in capsys.readouterr().err


def test_wrong_booleans_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = NORM.replace("x / x.abs().sum(-1, keepdim=True)", "x > x.mean(-1, keepdim=True)").replace("norm", "flags")
    (tmp_path / "flags.py").write_text(flags.replace("torch.empty_like(x)", "torch.empty_like(x, dtype=torch.bool)"))
    (tmp_path / "wrong.rules").write_text("value_check.flags(x: *b d) -> *b d as i1\n")
    (tmp_path / "in.mlir").write_text(
        "spmd.mesh @mesh <tp = 2>\n"
        "func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<4x8xi1> {\n"
        "  %flags = value_check.flags(%x) : tensor<4x8xi1>\n  return %flags : tensor<4x8xi1>\n}\n"
    )
    plugins = [option for name in ("flags.py", "wrong.rules") for option in ("--load-plugin", str(tmp_path / name))]
    assert spmd_run.main([str(tmp_path / "in.mlir"), "--check=all", *plugins]) == 1
    assert "%flags = value_check.flags differs from one device" in capsys.readouterr().err
