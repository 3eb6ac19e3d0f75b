"""What terminals show: axes and tables in colour, and progress that is gone before anything is printed."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import spmdir
from spmdir.core import progress
from spmdir.core.axis_colors import axis_color
from spmdir.report.op_sums import table
from spmdir.tools import spmd
from spmdir.tools.command import in_colour, run_tool, write_text
from spmdir.tools.terminal import ir_in_colour, table_in_colour

PROGRAM = """spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%dp: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp(1)2: P(sum)>},
             %y: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = spmd.all_reduce %dp on [dp, tp] op sum : tensor<8x4xf32> <tp: ?>
  return %0 : tensor<8x4xf32>
}
"""
MATMUL = """spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %y = aten.mm(%x, %w) : tensor<8x8xf32> <dp: S(0)>
  return %y : tensor<8x8xf32>
}
"""
GOLDEN = Path(__file__).parents[1] / "golden"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_axis_of_printed_ir_is_in_its_colour_and_nothing_else_is() -> None:
    shown = ir_in_colour(PROGRAM)
    assert _ESCAPE.sub("", shown) == PROGRAM
    found = re.findall(r"\x1b\[38;2;([0-9;]+)m(.*?)\x1b\[0m", shown)
    assert [text for _, text in found] == ["dp", "tp", "dp: S(0)", "tp(1)2: P(sum)", "dp", "tp", "tp: ?"]
    for color, text in found:
        hexed = "#" + "".join(f"{int(part):02x}" for part in color.split(";"))
        assert hexed == axis_color(text[:2], ("dp", "tp"))


def test_a_table_in_colour_has_the_cells_of_the_plain_one() -> None:
    cells = [("axis", "ms"), ("dp, tp", "1.5"), ("tp", "0")]
    shown = table_in_colour(cells, range(1, 2), ("dp", "tp"))
    lines = [words for line in shown.splitlines() if (words := _ESCAPE.sub("", line).replace("─", "").split())]
    assert lines == [["axis", "ms"], ["dp,", "tp", "1.5"], ["tp", "0"]]
    assert shown.count("\x1b[38;2;221;102;0m") == 2  # tp


def test_a_table_in_colour_has_every_number_in_a_terminal_that_is_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    label, numbers = "model.layers.{1-30}.feed_forward", ("0.02815 ", "1.573 MB", "compute")
    text = table_in_colour([("module", "ms", "sent", "bound by"), (label, *numbers)], range(1, 3), ())
    head, _, *rows = _ESCAPE.sub("", text).splitlines()
    assert head.split() == ["module", "ms", "sent", "bound", "by"]
    assert all(number.strip() in rows[0] for number in numbers)
    assert "".join(row.split()[0] for row in rows) == label


def test_names_in_tables_cannot_steer_a_terminal() -> None:
    cells = [("module", "ms"), ("\x1b[31mred\n\u202e", "1.5")]
    expected = r"\x1b[31mred\n\u202e"
    plain = table(cells, range(1, 2))
    assert len(plain) == 2 and plain[1].split() == [expected, "1.5"]
    assert expected in table_in_colour(cells, range(1, 2), ())


@pytest.mark.parametrize(
    ("when", "no_color", "expected"),
    [("auto", "", True), ("auto", "1", False), ("always", "1", True), ("never", "", False)],
)
def test_colour_is_for_terminals_unless_it_is_asked_for(when, no_color, expected, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    assert in_colour(when, Terminal()) is expected
    assert in_colour(when, io.StringIO()) is (when == "always")


def test_progress_is_gone_before_something_is_printed_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(progress, "_DELAY", -1.0)
    with progress.terminal_line() as show, progress.shown_by(show):
        progress.say("pass {} of {}", 1, 2)
        drawn = terminal.getvalue()
        print("result")
    assert "pass 1 of 2" in drawn
    after = terminal.getvalue()[len(drawn) :]
    assert after.index("\x1b[2K") < after.index("result") and after.endswith("result\n")
    assert sys.stdout is terminal is sys.stderr


def test_the_first_stage_is_shown_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, drawn = Terminal(), threading.Event()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_DELAY", 0.01)
    monkeypatch.setattr(terminal, "flush", lambda: "pass 1 of 1" in terminal.getvalue() and drawn.set())
    with progress.terminal_line() as show, progress.shown_by(show):
        progress.say("pass 1 of 1")
        assert drawn.wait(60)
        shown = terminal.getvalue()
        print("result", file=sys.stderr)
    assert "pass 1 of 1" in shown and terminal.getvalue().endswith("\x1b[2Kresult\n")


class Pipe(io.StringIO):
    """A pipe whose reader prints at once: it keeps what the terminal shows at each write."""

    def __init__(self, terminal: Terminal):
        super().__init__()
        self.terminal, self.shown = terminal, list[str]()

    def write(self, text: str) -> int:
        self.shown.append(self.terminal.getvalue())
        return super().write(text)

    def flush(self) -> None:
        self.shown.append(self.terminal.getvalue())


def test_progress_is_gone_before_something_is_printed_to_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    pipe = Pipe(terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(progress, "_DELAY", -1.0)

    def body(argv: Sequence[str]) -> int:
        progress.say("pass 1 of 2")
        write_text(None, "result\n")
        time.sleep(0.11)
        progress.say("pass 2 of 2")
        sys.stdout.flush()
        return 0

    assert run_tool(body, []) == 0
    assert pipe.getvalue() == "result\n" and len(pipe.shown) >= 2
    assert "pass 1 of 2" in pipe.shown[0] and "pass 2 of 2" in terminal.getvalue()
    for shown in pipe.shown:
        assert "pass" not in shown[shown.rindex("\x1b[2K") :]


def test_the_reader_of_a_pipe_prints_to_a_terminal_without_progress() -> None:
    """A tool and the reader of its output share a terminal, as in `spmd-opt in.mlir | grep spmd`."""
    code = """if True:
        import sys
        from spmdir.core import progress
        from spmdir.tools.command import run_tool, write_text
        progress._DELAY = -1.0
        def body(argv):
            progress.say("propagate")
            write_text(None, "result " * 9999 + "\\n")
            return 0
        sys.exit(run_tool(body, []))
    """
    parent, child = pty.openpty()
    command = f"{sys.executable} -c {shlex.quote(code)} | cut -c1-6"
    done = subprocess.Popen(["sh", "-c", command], stdout=child, stderr=child, env=os.environ | {"TERM": "xterm"})
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # as Linux ends a terminal that nobody writes to any more
        while part := os.read(parent, 4096):
            shown += part
    os.close(parent)
    assert done.wait() == 0
    drawn, _, last = shown.decode().rpartition("\x1b[2K")
    assert "propagate" in drawn and "propagate" not in last and last.strip().endswith("result")


def test_a_stream_that_is_closed_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run_tool(lambda argv: write_text(None, "result") or 0, []) == 1
    expected = (
        "error: cannot write the output: standard output is closed; expected an open one: open it, or write to a file "
        "with -o\n"
    )
    assert capsys.readouterr().err == expected
    assert run_tool(lambda argv: 0, []) == 0
    assert not in_colour("auto", sys.stdout)
    monkeypatch.setattr(sys, "stderr", None)
    assert run_tool(lambda argv: 0, []) == 0


def test_no_progress_is_shown_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.terminal_line() as show:
        assert show is None


_ASKED = {
    "explain": ["-", "%y"],
    "explain, what if": ["-", "--set", "%y = tp: S(1)"],
    "diff": ["-", "{file}"],
    "plan-reshard": ["dp: S(0), tp: R", "tp: S(1)", "--mesh", "dp=2,tp=4", "--shape", "8x8"],
}


@pytest.mark.parametrize("asked", _ASKED)
def test_what_tools_say_of_axes_is_in_colour_where_it_is_asked_for(asked, monkeypatch, capsys, tmp_path) -> None:
    subcommand = asked.partition(",")[0]
    (tmp_path / "other.mlir").write_text(MATMUL.replace("dp: S(0)", "tp: S(0)"))
    arguments = [one.format(file=tmp_path / "other.mlir") for one in _ASKED[asked]]

    def told(when: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MATMUL.encode())))
        assert spmd.main([subcommand, *arguments, "--color", when]) == 0
        return capsys.readouterr().out

    plain, coloured = told("auto"), told("always")
    assert "\x1b" not in plain and _ESCAPE.sub("", coloured) == plain
    assert re.search(r"\x1b\[38;2;0;119;170mdp: \w", coloured)


def test_long_work_says_how_far_it_is(tmp_path) -> None:
    told: list[str] = []
    text = (GOLDEN / "schedule" / "what_is_gathered_again_is_hidden_too.mlir").read_text()
    with progress.shown_by(told.append):
        spmdir.run_passes(spmdir.parse(text), "localize,schedule{memory=390MB}")
        state = {"w": torch.ones(2), "b": torch.ones(3)}
        spmdir.checkpoint.save(tmp_path, state)
        spmdir.checkpoint.load(tmp_path, state)
    for beginning in ("fit-memory: round 1 of", "reorder: 1 of", "saving w (", "loading b ("):
        assert any(line.startswith(beginning) for line in told), (beginning, told)
