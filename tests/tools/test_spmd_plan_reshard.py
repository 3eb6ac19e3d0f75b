"""`spmd plan-reshard` as its users call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.tools import spmd

WIDE = ["--mesh", "2x8", "--shape", "4096x4096", "--topology", "flat"]


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert spmd.main(["plan-reshard", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_plan_stands_beside_its_bound_and_the_plans_of_dtensor(capsys) -> None:
    lines = printed(capsys, "S(0), S(0)", "S(1), S(1)", *WIDE)
    assert lines[0] == "<a: S(0), b: S(0)> -> <a: S(1), b: S(1)>"
    assert any(line.startswith("plan") and line.endswith("1.00x") for line in lines)
    assert "  all_to_all on [a, b] dim 0 to 1 -> <a: S(1), b: S(1)>  3.932 MB  10.64 us" in lines
    assert "lower bound  3.932 MB" in lines
    ratios = {line.partition("  ")[0]: line.split()[-1] for line in lines if line.startswith("DTensor")}
    assert ratios == {"DTensor, greedy": "11.73x", "DTensor, min-cost": "4.80x"}


def test_dtensor_is_given_the_nesting_order(capsys) -> None:
    lines = printed(capsys, "b: S(0), a: S(0)", "a: S(0), b: S(0)", *WIDE)
    assert "  permute on [a, b] -> <a: S(0), b: S(0)>  4.194 MB  11.35 us" in lines
    assert sum(line.startswith("DTensor") and line.endswith("3.62x") for line in lines) == 2


def test_a_step_that_dtensor_plans_and_cannot_run_is_told(capsys) -> None:
    lines = printed(capsys, "S(0)", "P", "--mesh", "8", "--shape", "4096x4096")
    assert "DTensor, greedy: plans S(0) to P(sum) on [a] in one step, for which there is no collective" in lines


def test_axes_nodes_element_type_and_topology_are_options(capsys, tmp_path: Path) -> None:
    machine = tmp_path / "slow.toml"
    machine.write_text(
        "intra_bandwidth = 1e9\ninter_bandwidth = 1e6\nbase_latency = 0\nintra_latency = 0\ninter_latency = 0\n"
        "memory_bandwidth = 1e12\n"
    )
    call = ["", "dp: P", "--mesh", "dp=2,tp=4", "--shape", "8x8", "--dtype", "bf16", "--no-dtensor"]
    assert printed(capsys, *call, "--topology", "h100x8")[1] == "mesh <dp = 2, tp = 4>, 8x8 bf16, topology h100x8"
    gather = ["dp: S(0)", "", "--mesh", "dp=2", "--shape", "1000x1000", "--no-dtensor", "--topology", str(machine)]
    inside, across = printed(capsys, *gather), printed(capsys, *gather, "--intra", "")
    assert (inside[3].split()[-2:], across[3].split()[-2:]) == (["ms", "1.00x"], ["ms", "1.00x"])
    assert float(across[3].split()[-3]) == pytest.approx(1000 * float(inside[3].split()[-3]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["S(0)", "Q", "--mesh", "8", "--shape", "8"], "unknown placement 'Q'"),
        (
            ["S(0)", "R", "--mesh", "8x", "--shape", "8"],
            "'' is not a mesh axis; expected name=size, as in dp=2,tp=4, or sizes alone, as in 2x4",
        ),
        (["S(0)", "R", "--mesh", "8", "--shape", "8x"], "'8x' is not a shape"),
        (["S(1)", "R", "--mesh", "8", "--shape", "8"], "shards dimension 1 of a tensor of rank 1"),
        (["S(0)", "R", "--mesh", "8", "--shape", "8", "--topology", "h100"], "unknown topology 'h100'"),
        (["S(0)", "R", "--mesh", "8", "--shape", "8", "--topology", "no.toml"], "cannot read the topology no.toml"),
    ],
)
def test_an_error_is_one_line(argv: list[str], message: str, capsys) -> None:
    assert spmd.main(["plan-reshard", *argv]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intra_bandwidth = 1e9\n", "machine.toml:1:1: error: the topology has no inter_bandwidth, base_latency"),
        ("intra_bandwith = 1e9\n", "machine.toml:1:1: error: unknown key 'intra_bandwith' of a topology"),
        ("intra_bandwidth = 0\n", "expected a positive number of bytes per second"),
        ("\nintra_bandwidth = -1\n", "machine.toml:2:1: error: intra_bandwidth is -1; expected a number from 0 on"),
        ("peak_flops = 1\n", "machine.toml:1:1: error: peak_flops is 1; expected a table"),
        ("[peak_flops]\nbf61 = 1\n", "machine.toml:2:1: error: unknown unit 'bf61'; expected one of f64"),
        ("[peak_flops]\nbf16 = 0\n", "machine.toml:2:1: error: bf16 is 0; expected operations per second, above 0"),
        ("memory = 0\n", "machine.toml:1:1: error: memory is 0; expected a positive number of bytes"),
        ("ranks_per_node = 1.5\n", "machine.toml:1:1: error: ranks_per_node is 1.5; expected a whole number of ranks"),
        ("base_latency = 1e308\n", "machine.toml:1:1: error: base_latency is 1e+308; expected 0 to 1e+06, in SI units"),
        ("intra_bandwidth = 1e-320\n", "machine.toml:1:1: error: intra_bandwidth is 1e-320; expected 0.001 to 1e+30"),
        ("inter_bandwidth = 1e31\n", "machine.toml:1:1: error: inter_bandwidth is 1e+31; expected 0.001 to 1e+30"),
        ("[peak_flops]\nbf16 = 1e-320\n", "machine.toml:2:1: error: bf16 is 1e-320; expected 0.001 to 1e+30"),
        ("intra_bandwidth =\n", "machine.toml:1:18: error: Invalid value"),
    ],
)
def test_a_topology_file_says_what_is_wrong(text: str, message: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    assert spmd.main(["plan-reshard", "S(0)", "R", "--mesh", "8", "--shape", "8", "--topology", str(path)]) == 1
    assert message in capsys.readouterr().err
