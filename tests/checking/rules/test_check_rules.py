"""The tool and the function, end to end: one run over a few ops of every kind of outcome."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spmdir
from spmdir.checking.rules.pool import Death, Worker
from spmdir.checking.rules.report import RuleReport
from spmdir.checking.rules.worker_options import Options, Setup
from spmdir.tools import spmd

HERE = Path(__file__).parent
RULES, SAMPLES = HERE / "own.rules", HERE / "own_samples.py"
OPS = ["aten.mm", "aten.exp", "aten.abs", "spmdirtest.crash", "spmdirtest.double"]


@pytest.fixture(scope="module")
def report() -> RuleReport:
    return spmdir.testing.check_rules(OPS, plugins=[RULES], samples=SAMPLES, captured=False, processes=1)


def test_ops_are_reported_in_the_order_asked_for(report: RuleReport):
    assert [op.op for op in report.ops] == OPS
    assert [op.family for op in report.ops] == ["contraction", "own", "own", "own", "own"]


def test_right_rules_are_sound_and_complete(report: RuleReport):
    for op in (report.ops[0], report.ops[4]):
        assert op.samples and op.strategies and not op.unsound and not op.missing and not op.crash


def test_a_wrong_strategy_is_found(report: RuleReport):
    assert {fault.strategy for fault in report.ops[2].unsound} == {"(P(max)) -> (P(max))"}
    assert {fault.ranks for fault in report.ops[2].unsound} == {"2", "3", "4"}
    assert not report.sound


def test_strategies_that_a_rule_leaves_out_are_found(report: RuleReport):
    missing = {m.strategy for m in report.ops[1].missing}
    assert {"(S(0)) -> (S(0))", "(S(1)) -> (S(1))", "(P(max)) -> (P(max))", "(P(min)) -> (P(min))"} == missing


def test_a_crash_is_the_ops_own(report: RuleReport):
    crash = report.ops[3].crash
    assert crash == "signal SIGABRT while running (5x4xf64)"


def test_the_table_names_what_is_wrong(report: RuleReport):
    table = report.table()
    assert "aten.abs: unsound on 2 ranks: (P(max)) -> (P(max)): result 0 differs by" in table
    assert "spmdirtest.crash: crash: signal SIGABRT" in table
    assert "aten.exp: missing: (S(0)) -> (S(0)): sound in" in table


def test_a_strategy_that_is_wrong_in_many_runs_counts_once(tmp_path: Path):
    rules = tmp_path / "wrong.rules"
    rules.write_text("aten.exp(self: *) -> *    linear self; commutes max min")
    (op,) = spmdir.testing.check_rules(["aten.exp"], plugins=[rules], captured=False, missing=False, processes=1).ops
    wrong = {fault.strategy for fault in op.unsound}
    assert wrong == {"(P(sum)) -> (P(sum))", "(P(avg)) -> (P(avg))"}
    assert op.faulty == 2 * op.samples < len(op.unsound)
    assert op.counts == (op.samples, op.sound + op.faulty, op.sound, op.faulty, 0) and op.sound == 5 * op.samples


def test_it_is_a_failure_if_nothing_was_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rules = tmp_path / "own.rules"
    rules.write_text("mylib.scale(x: *) -> *\n")
    options = ["--load-plugin", str(rules), "--packaged", "--no-missing", "--world", "2", "--processes", "1"]
    assert spmd.main(["check-rules", "mylib.scale", "aten.neg", *options]) == 1
    assert "no sample calls mylib.scale; add calls with --samples" in capsys.readouterr().out
    assert spmd.main(["check-rules", "aten.neg", *options]) == 0


@pytest.mark.parametrize("reason", ["", "# unchecked: only the kernel of a device has it\n"])
def test_a_strategy_of_no_sample_is_a_failure_unless_its_file_says_why(tmp_path: Path, reason: str, capsys):
    rules = tmp_path / "own.rules"
    strategy = "aten.gelu: (S(0)) -> (S(0))    when rank(self) == 7\n"
    rules.write_text(f"aten.gelu(self: *, approximate) -> *\n{reason}{strategy}")
    arguments = ["aten.gelu", "--packaged", "--no-missing", "--processes", "1", "--load-plugin", str(rules)]
    assert spmd.main(["check-rules", *arguments]) == (0 if reason else 1)
    said = "; add calls with --samples" if not reason else ": only the kernel of a device has it"
    lines = capsys.readouterr().out.splitlines()
    assert any("not checked" in line and "(S(0)) -> (S(0))" in line and line.endswith(said) for line in lines)


def test_json_has_the_figures_of_the_table(report: RuleReport):
    data = json.loads(report.json())
    by_name = {op["op"]: op for op in data["ops"]}
    assert by_name["aten.abs"]["unsound"] and by_name["aten.mm"]["sound"] == by_name["aten.mm"]["strategies"]
    assert data["totals"]["total"]["unsound"] == data["totals"]["own"]["unsound"] == 1


def test_the_tool_prints_the_report_and_fails_for_wrong_rules(monkeypatch, capsys, report: RuleReport):
    monkeypatch.setattr("spmdir.checking.rules.check_rules", lambda *args, **kwargs: report)
    assert spmd.main(["check-rules", "aten.abs", "--load-plugin", str(RULES)]) == 1
    assert capsys.readouterr().out == report.table()
    assert spmd.main(["check-rules", "aten.abs", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["totals"]
    monkeypatch.setattr("spmdir.checking.rules.check_rules", lambda *args, **kwargs: RuleReport(report.ops[:1]))
    assert spmd.main(["check-rules", "aten.mm"]) == 0


def test_each_op_that_is_done_is_told_if_that_is_asked_for(capsys):
    options = ["--packaged", "--no-missing", "--world", "2", "--processes", "1"]
    assert spmd.main(["check-rules", "aten.mm", "aten.dot", *options, "--progress"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["1/2 aten.mm", "2/2 aten.dot"]
    assert told[0].endswith("0 unsound, 0 missing")
    assert spmd.main(["check-rules", "aten.dot", *options]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: no op was named; expected names of ops, such as aten.mm, or --all"),
        (["aten.mm", "--all"], "error: found names of ops and --all; expected names of ops, such as aten.mm, or --all"),
        (
            ["mine.softcap"],
            "error: op mine.softcap has no sharding rule; expected an op with a rule: load the plug-in or .rules file",
        ),
        (["aten.mmm"], "error: op aten.mmm has no sharding rule; expected an op with a rule; did you mean 'aten.mm'?"),
        (["aten.mm", "--world", "2,x"], "error: argument --world: '2,x' is not a list of numbers; expected numbers"),
        (["aten.mm", "--world", "1"], "error: world_sizes is [1]; expected numbers of ranks, at least 2"),
        (["aten.mm", "--load-plugin", "absent.rules"], "error: cannot read rules from 'absent.rules': No such file"),
        (["aten.mm", "--al"], "error: unknown option '--al'; did you mean '--all'?"),
    ],
)
def test_what_cannot_be_checked_is_an_error(arguments: list[str], message: str, capsys):
    assert spmd.main(["check-rules", *arguments]) == 1
    assert capsys.readouterr().err.startswith(message)


def test_samples_that_fail_are_rejected(tmp_path: Path):
    path = tmp_path / "broken.py"
    path.write_text("def samples():\n    return 1 / 0\n")
    with pytest.raises(spmdir.SpmdirError, match=r"broken\.py' failed: ZeroDivisionError"):
        spmdir.testing.check_rules(["aten.mm"], samples=path, captured=False, processes=1)


def test_an_op_that_does_not_end_is_given_up():
    worker = Worker(Setup())
    death = worker.ask(("check", "aten.mm", (), Options()), 0.01)
    worker.stop()
    assert isinstance(death, Death) and death.how == "no answer within 0.01 s"


BY_TURNS = """
from typing import ClassVar

import attrs

from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.shards import ShardPlacement


@attrs.frozen
class ByTurns(ShardPlacement):
    text: ClassVar[str] = "ByTurns({dim})"
    dim: int

    def ranges(self, size, count, index):
        return tuple((at, at + 1) for at in range(index, size, count))


@attrs.frozen
class Credulous(PartialPlacement):
    text: ClassVar[str] = "Credulous"

    def passes(self, clause, reductions):
        return True

    def distribute(self, tensor, count, noise):
        partials = [noise(tensor) for _ in range(count - 1)]
        return [*partials, tensor - sum(partials)]
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plugin") / "by_turns.py"
    path.write_text(BY_TURNS)
    return path


def test_a_plug_in_is_checked_on_its_own_strategies(plugin: Path, capsys: pytest.CaptureFixture[str]):
    common = ["aten.mm", "--packaged", "--processes", "1", "--world", "2", "--load-plugin", str(plugin), "--json"]
    assert spmd.main(["check-rules", *common, "--placement", "ByTurns(0)"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["ops"]
    assert (found["samples"], found["strategies"], found["missing"]) == (4, 12, [])


def test_a_placement_that_lets_too_much_pass_is_found(plugin: Path):
    report = spmdir.testing.check_rules(
        ["aten.relu"], world_sizes=(2,), placements=("Credulous",), plugins=(plugin,), captured=False, processes=1
    )
    assert {fault.strategy for fault in report.ops[0].unsound} == {"(Credulous) -> (Credulous)"}


def test_what_is_no_placement_is_said_at_once():
    with pytest.raises(spmdir.SpmdirError, match="unknown placement 'Nonesuch'"):
        spmdir.testing.check_rules(["aten.mm"], placements=("Nonesuch",))
