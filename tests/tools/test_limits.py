"""What is too large is an error at once that names the limit; nothing nests deeper than a reader can follow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spmdir.core import limits
from spmdir.core.errors import LimitError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding_plan import read_plan
from spmdir.core.symbolic.parser import parse_condition, parse_number
from spmdir.reshard.topology import find_topology
from spmdir.rewrites.rewrite_text import parse_rewrites
from spmdir.rules.language.parser import parse_rule
from spmdir.tools import spmd, spmd_opt

MESH = Mesh({"dp": 2})
PROGRAM = """\
spmd.mesh @mesh <{axes}>
func.func @f(%x: tensor<{dims}f32>) -> tensor<{dims}f32> {{
  %0 = aten.relu(%x) : tensor<{dims}f32>
  return %0 : tensor<{dims}f32>
}}
"""


@pytest.mark.parametrize(
    ("axes", "dims", "message"),
    [
        ("dp = 1000000000", "4x", "too many ranks of a mesh: found 1000000000, expected at most"),
        (", ".join(f"a{i} = 2" for i in range(40)), "4x", "too many axes of a mesh: found 40, expected at most"),
        ("dp = 2", "1x" * 300_000, "too many dimensions of a tensor: found 300000, expected at most 64"),
        ("dp = 2", "1x" * 65, "too many dimensions of a tensor: found 65, expected at most 64"),
        ("dp = 2", f"{2**63}x", "too many elements of a tensor: found 9223372036854775808"),
        ("dp = 2", "4294967296x4294967296x", "too many elements of a tensor: found 18446744073709551616"),
        ("dp = 2", "9" * 5000 + "x", "Exceeds the limit"),
    ],
)
def test_a_program_beyond_a_limit_is_an_error_at_its_place(
    axes: str, dims: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(PROGRAM.format(axes=axes, dims=dims))
    assert spmd_opt.main([str(path), "--propagate"]) == 1
    error = capsys.readouterr().err
    assert re.match(rf"{path}:\d+:\d+: error: ", error)
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["S(0), R, R, R", "R, R, R, S(0)", "--mesh", "64x64x64x64", "--shape", "64"], "too many ranks of a mesh"),
        (["S(0)", "R", "--mesh", "2", "--shape", "x".join(["2"] * 65)], "too many dimensions of a tensor"),
        (["S(0)", "R", "--mesh", "2", "--shape", f"{10**17}x{10**17}"], "too many elements of a tensor"),
        (["Cyclic(0, 2)", "S(0)", "--mesh", "2", "--shape", "1000000000"], "too many separate ranges"),
    ],
)
def test_a_plan_beyond_a_limit_is_an_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spmd.main(["plan-reshard", *arguments, "--no-dtensor"]) == 1
    assert message in capsys.readouterr().err


DEEP = "(" * 10_000 + "a" + ")" * 10_000


@pytest.mark.parametrize(
    "condition",
    [
        DEEP,
        " and ".join(["a"] * 5000),
        " + ".join(["1"] * 5000) + " == 1",
        "-" * 5000 + "1 == 1",
        "[" * 9999,
        "9" * 5000,
    ],
)
def test_a_rule_nested_too_deeply_is_an_error_at_its_place(condition: str) -> None:
    with pytest.raises(SpmdirError) as caught:
        parse_rule(f"mylib.f(x: a, k: scalar) -> a  unsharded a if {condition}", "own.rules", 7)
    assert caught.value.location
    assert caught.value.location.line == 7


def test_of_many_errors_in_rules_the_first_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.rules").write_text("aten.relu: (S(0)) -> (S(0)) when count(0) == 0\n" * 300)
    (tmp_path / "in.mlir").write_text(PROGRAM.format(axes="dp = 2", dims="4x"))
    assert spmd_opt.main([str(tmp_path / "in.mlir"), "--load-plugin", str(tmp_path / "own.rules")]) == 1
    *shown, last = capsys.readouterr().err.splitlines()
    assert len(shown) == limits.MISTAKES.most
    assert "own.rules:300:" in last and "too many errors in rules: found 300, expected at most 100" in last


def test_a_rewrite_nested_too_deeply_is_an_error_at_its_place() -> None:
    term = "(all_gather " * 5000 + "x" + " on A dim d)" * 5000
    with pytest.raises(LimitError, match="too many levels of nested brackets: found 65, expected at most 64"):
        parse_rewrites(f"deep: all_gather {term} on A dim d => x")


@pytest.mark.parametrize(
    "text", [DEEP, "s0" + " + 1" * 5000, "10**64**64**64", "((((s0**16)**16)**16)**16)", "(s0+s1+s2+s3+s4+s5)**16"]
)
def test_a_size_that_is_too_large_to_be_worked_out_is_an_error(text: str) -> None:
    with pytest.raises(SpmdirError):
        parse_number(text)
    with pytest.raises(SpmdirError):
        parse_condition(f"{text} == 1")


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000, "{a=" * 5000])
def test_a_plan_or_a_topology_nested_too_deeply_is_an_error(value: str, tmp_path: Path) -> None:
    with pytest.raises(LimitError):
        read_plan(f"out_shardings = {value}", "plan.toml", MESH)
    topology = tmp_path / "own.toml"
    topology.write_text(f"base_latency = {value}")
    with pytest.raises(LimitError):
        find_topology(str(topology))  # type: ignore[arg-type]


def test_brackets_and_digits_of_strings_and_comments_are_not_counted() -> None:
    limits.check_nesting(
        '"' + "(" * 70 + '"  # ' + "[" * 70 + "\n// " + "1" * 50 + "\n'w." + "2" * 50 + "' = 1", "plan.toml"
    )


def test_a_simulation_says_how_many_ranks_it_takes() -> None:
    from spmdir.dialects import ir
    from spmdir.simulator.simulate import simulate

    module = ir.parse(PROGRAM.format(axes="dp = 8192", dims="4x"))
    with pytest.raises(LimitError, match="too many ranks of a simulation: found 8192, expected at most 4096"):
        simulate(module, [])


def test_every_limit_is_in_the_page_of_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()
    for limit in limits.ALL:
        assert re.search(rf"\| {limit.quantity} \|.*\b{limit.most}\b", page), limit


WAITING = 'import time\nprint("here", flush=True)\ntime.sleep(60)\n'


@pytest.mark.parametrize("during", ["an import", "a plug-in"])
def test_an_interrupt_ends_a_tool_with_one_line_and_no_file(during: str, tmp_path: Path) -> None:
    name = "argparse.py" if during == "an import" else "plugin.py"
    (tmp_path / name).write_text(WAITING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "spmdir.tools.spmd_opt", "--load-plugin", str(tmp_path / "plugin.py")]
    out = tmp_path / "out.mlir"
    with subprocess.Popen(
        [*command, "-o", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "here\n"
        process.send_signal(2)
        assert process.stderr.read() == "interrupted\n"
    assert process.returncode == 130
    assert not out.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_device_is_an_error_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spmdir.tools.spmd_opt", "--list-passes"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
    expected = (
        "error: cannot write the output: No space left on device; free space, or write to another place with -o\n"
    )
    assert (done.returncode, done.stderr) == (1, expected)


def test_a_wait_for_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.mlir"
    text = PROGRAM.format(axes="dp = 2", dims="4x").replace("aten.relu(%x)", "spmd.wait")
    path.write_text(text)
    assert spmd_opt.main([str(path)]) == 1
    assert "has 0 operands and 1 results; expected equal numbers" in capsys.readouterr().err


def test_rules_are_checked_on_as_many_ranks_as_can_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert spmd.main(["check-rules", "aten.relu", "--world", "5000"]) == 1
    assert capsys.readouterr().err == "error: too many ranks of a simulation: found 5000, expected at most 4096\n"
