"""`benchmarks.integer_program` reports that HiGHS has used up its time, without a traceback."""

from __future__ import annotations

import sys

import pytest

from benchmarks import integer_program


def test_time_limit_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("highspy")
    arguments = ["--models", "tiny", "--layers", "1", "--meshes", "2x2", "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", ["integer_program", *arguments])
    monkeypatch.setattr(integer_program, "cold", lambda function, *given: function(*given))
    integer_program.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("tiny on 2x2: HiGHS did not solve the relaxation (")
    assert lines[-1].endswith(
        "within 0 s: time limit reached; use a larger --seconds, fewer --layers or a smaller mesh"
    )
