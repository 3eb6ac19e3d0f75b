"""Sweeps: rows against programs of full depth, limits, bounds, and the plan of the best row."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest

from spmdir.placement import sharding_plan
from spmdir.report import memory_report
from spmdir.sweep.candidate import candidates
from spmdir.sweep.price import Setting, imported, price
from spmdir.sweep.step_costs import StepCosts, at_depth
from spmdir.sweep.sweep import Question, Sweep, gradient_seconds, state_bytes, sweep
from spmdir.sweep.sweep_text import plan_file, sweep_csv, sweep_html, sweep_json, sweep_text
from spmdir.sweep.workload import ConfiguredModel
from tests.sweep.test_workload import config_file

RECIPES = ("ddp", "fsdp*tp*sp")


@pytest.fixture(scope="module")
def free(question: Question) -> Sweep:
    """The sweep without a memory limit."""
    return sweep(attrs.evolve(question, memory=math.inf), RECIPES)


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Question:
    path = config_file(
        tmp_path_factory.mktemp("model"), hidden_size=256, intermediate_size=512, vocab_size=512, num_hidden_layers=6
    )
    return Question.of(ConfiguredModel.read(path), 4, 8)


def test_costs_of_two_depths_give_the_costs_of_the_whole_model(question: Question) -> None:
    for recipe in RECIPES:
        candidate = next(candidates(4, 8, [recipe]))
        setting = Setting(question.samples, 1, False, None)
        predicted = price(question.workload, candidate, setting, question.pipeline)
        whole, _ = imported(question.workload, candidate, attrs.evolve(setting, depth=question.layers))
        peak = memory_report(whole, pipeline=question.pipeline).peak_bytes
        assert predicted.peak_bytes == pytest.approx(peak, rel=0.1), recipe


def test_peak_moves_to_another_place_with_depth() -> None:
    one = StepCosts(1.0, 0.0, 1.0, {"loss": {"activations": 9.0}, "end": {"gradients": 3.0}})
    two = StepCosts(2.0, 0.0, 2.0, {"loss": {"activations": 10.0}, "end": {"gradients": 6.0}})
    costs = at_depth({1: one, 2: two}, 32)
    assert (costs.seconds, costs.peak_bytes, costs.memory) == (32.0, 96.0, {"gradients": 96.0})


def test_more_layers_do_not_expose_less_communication() -> None:
    two, four = StepCosts(3.0, 1.0, 1.0, {}), StepCosts(4.5, 0.5, 1.0, {})
    costs = at_depth({2: two, 4: four}, 32)
    assert (costs.seconds, costs.exposed_seconds) == (32.5, 0.5)


def test_tight_memory_leads_to_recomputation_or_micro_batches(question: Question, free: Sweep) -> None:
    assert free.best is not None and free.best.recomputed == 0 and free.best.micro_batches == 1
    least = min(row.costs.peak_bytes for row in free.rows)
    tight = sweep(attrs.evolve(question, memory=least * 0.9), ("fsdp*tp*sp",))
    assert tight.best is not None
    assert tight.best.costs.peak_bytes <= least * 0.9
    assert tight.best.recomputed or tight.best.micro_batches > 1
    assert tight.best.costs.seconds >= free.best.costs.seconds


def test_rows_are_sorted_and_the_front_has_no_better_row(free: Sweep) -> None:
    seconds = [row.costs.seconds for row in free.rows]
    assert seconds == sorted(seconds)
    for row in free.pareto:
        assert not any(
            other.costs.seconds < row.costs.seconds and other.costs.peak_bytes < row.costs.peak_bytes
            for other in free.rows
        )
    assert 0 < free.utilisation(free.rows[0]) < 1


def test_bounds_are_below_the_prices(question: Question, free: Sweep) -> None:
    for row in free.rows:
        state = sum(row.costs.memory.get(kind, 0.0) for kind in ("parameters", "optimizer state"))
        assert state_bytes(row.candidate, free.parameters) <= state * (1 + 1e-9)
        assert gradient_seconds(row.candidate, free.parameters, question.machine) <= row.costs.seconds


def test_nothing_fits_into_too_little_memory(question: Question) -> None:
    result = sweep(attrs.evolve(question, memory=1e5), ("fsdp",))
    assert result.best is None
    assert "parameters and optimizer state need" in sweep_text(result)


def test_several_processes_give_the_same_rows(question: Question, free: Sweep) -> None:
    assert sweep(attrs.evolve(question, memory=math.inf), RECIPES, workers=2).rows == free.rows


def test_plan_of_a_row_is_a_plan_file_for_the_whole_model(free: Sweep, tmp_path: Path) -> None:
    row = next(row for row in free.rows if row.candidate.recipe == "fsdp*tp*sp")
    path = tmp_path / "plan.toml"
    path.write_text(plan_file(free, row))
    model = free.question.workload.case(1, None).model
    assert str(sharding_plan(model, row.candidate.mesh, str(path))) == str(free.plan(row))
    assert "# mesh: dp=2,tp=2; axes inside a node: dp, tp\n" in path.read_text()


def test_formats_list_all_rows(free: Sweep) -> None:
    assert len(sweep_csv(free).splitlines()) == len(free.rows) + 1
    assert sweep_json(free).count('"recipe"') == len(free.rows) + len(free.skipped)
    assert sweep_html(free).count("<circle") == len(free.rows)
