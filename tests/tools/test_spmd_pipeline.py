"""`spmd pipeline`: orders are made, written and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.tools.spmd import main


def test_an_order_is_printed_with_its_time_bound_and_diagram(capsys: pytest.CaptureFixture[str]):
    assert main(["pipeline", "--kind", "1f1b", "--ranks", "2", "--micro", "3"]) == 0
    assert capsys.readouterr().out == (
        "2 stages on 2 ranks (1 each), 3 micro-batches\n"
        "time         12 s\n"
        "lower bound  12 s  (the order is 0.0% above it)\n"
        "idle         25.0% of the ranks' time\n"
        "activations  2 of a rank's share of the model, at most  (2, 1)\n"
        "\n"
        "rank 0  F0 F1 .  .  B0 -  F2 B1 -  .  B2 -\n"
        "rank 1  .  F0 B0 -  F1 B1 -  F2 B2 -  .  .\n"
    )


def test_an_order_is_written_for_torch_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "order.csv"
    assert main(["pipeline", "--kind", "zbv", "--ranks", "2", "--micro", "2", "--messages", "-o", str(path)]) == 0
    assert "0SEND_F0" in path.read_text()
    assert main(["pipeline", "--check", str(path)]) == 0
    assert "4 stages on 2 ranks (2 each), 2 micro-batches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "zbx"], "unknown kind 'zbx'; expected one of gpipe, 1f1b, zb, zbv, search; did you mean 'zb'?"),
        (["--times", "1,2"], "invalid times '1,2'; expected three numbers from 0 on, such as 1,1.3,0.7"),
        (["--times", "1,inf,1"], "invalid times '1,inf,1'; expected three numbers from 0 on"),
        (["--message", "nan"], "invalid time of a message nan; expected seconds from 0 on"),
        (
            ["--live", "4"],
            "found --live with --kind 1f1b, which determines the activations; expected --kind search: leave out --live",
        ),
        (["--check", "missing.csv"], "cannot read order: No such file or directory"),
        (["--check", "x.csv", "--kind", "zb"], "found --check and --kind; expected --check alone"),
    ],
)
def test_wrong_options_are_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["pipeline", *arguments]) == 1
    assert message in capsys.readouterr().err
