"""Sweeps: settings against programs of full depth, limits, bounds, and the plan of the best setting."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random

import attrs
import pytest

from spmdir.placement import sharding_plan
from spmdir.report.rank_step import rank_step
from spmdir.sweep.candidate import MeshRecipe, candidates
from spmdir.sweep.captures import imported
from spmdir.sweep.price import Estimate, StepOptions, estimate, price, refine
from spmdir.sweep.step_costs import StepCosts, at_depth
from spmdir.sweep.sweep import (
    DOMINATED,
    Bound,
    Sweep,
    SweepRequest,
    bound_of,
    certified,
    gradient_seconds,
    settings_of,
    state_bytes,
    sweep,
)
from spmdir.sweep.sweep_text import plan_file, sweep_csv, sweep_html, sweep_json, sweep_text
from spmdir.sweep.workload import ConfiguredModel, PythonModel
from tests.sweep.test_workload import config_file

RECIPES = ("ddp", "fsdp*tp*sp")


@pytest.fixture(scope="module")
def free(tiny: SweepRequest) -> Sweep:
    """The sweep without a memory limit."""
    return sweep(attrs.evolve(tiny, memory=math.inf), RECIPES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> SweepRequest:
    path = config_file(
        tmp_path_factory.mktemp("model"), hidden_size=256, intermediate_size=512, vocab_size=512, num_hidden_layers=6
    )
    return SweepRequest.of(ConfiguredModel.read(path), 4, 8)


def test_costs_of_two_depths_give_the_costs_of_the_whole_model(tmp_path: Path) -> None:
    path = config_file(tmp_path, hidden_size=256, intermediate_size=512, vocab_size=512, num_hidden_layers=16)
    request = SweepRequest.of(ConfiguredModel.read(path), 4, 8)
    for recipe in RECIPES:
        candidate = next(candidates(4, 8, [recipe]))
        options = StepOptions(request.samples)
        predicted = price(request.workload, candidate, options, request.pipeline)
        whole, _ = imported(request.workload, candidate, options.at_depth(request.layers))
        step = rank_step(whole, None, request.pipeline)
        assert predicted.peak_bytes == pytest.approx(step.execution.peak_bytes, rel=0.1), recipe
        assert predicted.seconds == pytest.approx(step.execution.seconds, rel=0.1), recipe
        assert bound_of(predicted).seconds <= step.execution.seconds


def test_estimate_is_near_the_refined_costs(tiny: SweepRequest) -> None:
    for recipe in RECIPES:
        candidate, options = next(candidates(4, 8, [recipe])), StepOptions(tiny.samples, 2)
        estimated = estimate(tiny.workload, candidate, options, tiny.pipeline)
        costs = refine(tiny.workload, candidate, options, tiny.pipeline, estimated)
        assert estimated.costs.peak_bytes == pytest.approx(costs.peak_bytes, rel=0.2), recipe
        assert estimated.costs.least_seconds <= costs.seconds
        assert estimated.costs.flops == pytest.approx(costs.flops, rel=0.05)


def test_peak_moves_to_another_place_with_depth() -> None:
    one = StepCosts(1.0, 0.0, 1.0, {"loss": {"activations": 9.0}, "end": {"gradients": 3.0}})
    two = StepCosts(2.0, 0.0, 2.0, {"loss": {"activations": 10.0}, "end": {"gradients": 6.0}})
    costs = at_depth({1: one, 2: two}, 32)
    assert (costs.seconds, costs.peak_bytes, costs.memory) == (32.0, 96.0, {"gradients": 96.0})


def test_more_layers_do_not_expose_less_communication() -> None:
    two, four = StepCosts(3.0, 1.0, 1.0, {}), StepCosts(4.5, 0.5, 1.0, {})
    costs = at_depth({2: two, 4: four}, 32)
    assert (costs.seconds, costs.exposed_seconds) == (32.5, 0.5)


def test_tight_memory_leads_to_recomputation_or_micro_batches(tiny: SweepRequest, free: Sweep) -> None:
    assert free.best is not None and free.best.recomputed == 0 and free.best.micro_batches == 1
    least = min(setting.costs.peak_bytes for setting in free.settings)
    tight = sweep(attrs.evolve(tiny, memory=least * 0.9), ("fsdp*tp*sp",))
    assert tight.best is not None
    assert tight.best.costs.peak_bytes <= least * 0.9
    assert tight.best.recomputed or tight.best.micro_batches > 1
    assert tight.best.costs.seconds >= free.best.costs.seconds


def test_rows_are_sorted_and_the_front_has_no_better_row(free: Sweep) -> None:
    seconds = [setting.costs.seconds for setting in free.settings]
    assert seconds == sorted(seconds)
    for setting in free.pareto:
        assert not any(
            other.costs.seconds < setting.costs.seconds and other.costs.peak_bytes < setting.costs.peak_bytes
            for other in free.settings
        )
    assert 0 < free.utilisation(free.settings[0]) < 1


def test_bounds_are_below_the_prices(tiny: SweepRequest, free: Sweep) -> None:
    for setting in free.settings:
        state = sum(setting.costs.memory.get(kind, 0.0) for kind in ("parameters", "optimizer state"))
        assert state_bytes(setting.candidate, free.parameters) <= state * (1 + 1e-9)
        assert gradient_seconds(setting.candidate, free.parameters, tiny.machine) <= setting.costs.seconds


def test_dominated_settings_are_skipped(tiny: SweepRequest) -> None:
    candidate = next(candidates(4, 8, ["ddp"]))
    outcome = settings_of(attrs.evolve(tiny, memory=math.inf), candidate, [Bound(0.0, 0.0)])
    assert not outcome.settings
    assert [entry.reason for entry in outcome.skipped] == [DOMINATED]
    (setting,) = settings_of(attrs.evolve(tiny, memory=math.inf), candidate, [Bound(0.0, math.inf)]).settings
    assert setting.bound.seconds <= setting.costs.seconds


@pytest.mark.parametrize("seed", range(6))
def test_skipped_settings_are_not_the_best(seed: int, tiny: SweepRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    request = attrs.evolve(tiny, ranks=64, samples=256, memory=77e9)

    def random_costs(candidate: MeshRecipe, options: StepOptions, time: float, memory: float) -> StepCosts:
        random = Random(f"{seed} {candidate}")
        seconds, activations, state = random.uniform(1.0, 2.0), random.uniform(2e10, 3e11), random.uniform(1e9, 3e10)
        seconds *= 1.0 + 0.1 * options.micro_batches + 0.2 * options.recomputes
        activations /= options.micro_batches * (4 if options.recomputes else 1)
        places = {"end": {"activations": memory * activations, "parameters": memory * state}}
        return StepCosts(time * seconds, time * 0.4 * seconds, 1.0, places)

    def estimated(workload: object, candidate: MeshRecipe, options: StepOptions, *others: object) -> Estimate:
        return Estimate(random_costs(candidate, options, 1.0, 1.0), *[None] * 4)  # type: ignore[arg-type]

    def refine(workload: object, candidate: MeshRecipe, options: StepOptions, *others: object) -> StepCosts:
        random = Random(f"{seed} {candidate} {options}")
        time, memory = random.uniform(0.85, 1.2), random.uniform(0.9, 1.0)
        return random_costs(candidate, options, time, memory)

    monkeypatch.setattr("spmdir.sweep.sweep.estimate", estimated)
    monkeypatch.setattr("spmdir.sweep.sweep.refine", refine)
    recipes = ("fsdp", "hsdp", "fsdp*tp*sp", "hsdp*tp*sp", "fsdp*cp")
    result = sweep(request, recipes)
    outcomes = [settings_of(request, candidate) for candidate in candidates(64, 8, recipes)]
    fitting = [setting for outcome in outcomes for setting in outcome.settings if setting.fits]
    best = min(fitting, key=lambda setting: setting.costs.seconds)
    assert result.best is not None
    assert (result.best.candidate, result.best.costs) == (best.candidate, best.costs)
    assert len(result.settings) <= sum(len(outcome.settings) for outcome in outcomes)


def test_best_setting_is_the_same_without_bounds(tiny: SweepRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = ("fsdp", "fsdp*tp*sp", "zero1")
    bounded = sweep(tiny, recipes)
    monkeypatch.setattr(Bound, "dominates", lambda self, other: False)
    whole = sweep(tiny, recipes)
    assert len(whole.settings) == len(recipes)
    assert json.loads(sweep_json(bounded))["settings"][0] == json.loads(sweep_json(whole))["settings"][0]
    values = {setting.candidate: setting.values for setting in whole.settings}
    assert all(values[setting.candidate] == setting.values for setting in bounded.settings)
    for setting in whole.settings:
        assert setting.bound.seconds <= setting.costs.seconds


def test_stages_are_idle_at_the_start_and_the_end_of_a_step(tiny: SweepRequest) -> None:
    (candidate,) = candidates(4, 8, ["pp*fsdp"])
    settings = settings_of(attrs.evolve(tiny, memory=math.inf), candidate).settings
    assert candidate.shape == "pp=2,dp=2"
    assert [setting.micro_batches for setting in settings] == [2, 4]
    for setting in settings:
        assert setting.costs.idle_seconds / setting.costs.seconds == pytest.approx(1 / (setting.micro_batches + 1))
    result = Sweep(tiny, settings, (), 1.0, 1)
    assert "idle s" in sweep_text(result)
    assert result.plan(settings[0]).pipeline is not None


def test_costs_of_a_stage_are_a_share_of_those_of_the_model() -> None:
    memory = {"parameters": 8.0, "activations": 4.0, "gathered weights": 1.0}
    stage = StepCosts(8.0, 0.8, 80.0, {"loss": memory}).of_stage(4, 8, 32)
    assert (stage.seconds, stage.idle_seconds, stage.flops) == (2.75, 0.75, 20.0)
    assert stage.memory == {"parameters": 2.0, "activations": 4.0, "gathered weights": 1.0}
    assert StepCosts(8.0, 0.0, 0.0, {}).of_stage(4, 8, 30).seconds == pytest.approx(8 * 8 / 30 * 1.375)


def test_nothing_fits_into_too_little_memory(tiny: SweepRequest) -> None:
    result = sweep(attrs.evolve(tiny, memory=1e5), ("fsdp",))
    assert result.best is None
    assert "parameters and optimizer state need" in sweep_text(result)


def test_several_processes_give_the_same_rows(tiny: SweepRequest, free: Sweep) -> None:
    result = sweep(attrs.evolve(tiny, memory=math.inf), RECIPES, workers=2)
    assert (result.settings, result.skipped) == (free.settings, free.skipped)


def test_models_of_one_name_have_their_own_prices(tmp_path: Path) -> None:
    peaks = []
    for size in (32, 256):
        workload = ConfiguredModel.read(config_file(tmp_path, hidden_size=size, num_hidden_layers=1))
        (setting,) = sweep(SweepRequest.of(workload, 2), ("ddp",)).settings
        peaks.append(setting.costs.peak_bytes)
    assert peaks[1] > 4 * peaks[0]


def test_processes_build_the_model_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def build(samples, layers=3):\n"
        "    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])\n"
        "    return model, lambda model, x: model(x).square().mean(), torch.ones(samples, 8)\n"
    )
    result = sweep(SweepRequest.of(PythonModel.read(f"{path}:build"), 4), ("ddp", "fsdp"), workers=2)
    assert {setting.candidate.recipe for setting in result.settings} == {"ddp", "fsdp"}


EXPERTS = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8},
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_models_of_experts_are_priced(kind: str, tmp_path: Path) -> None:
    path = config_file(tmp_path, model_type=kind, num_hidden_layers=2, **EXPERTS[kind])
    result = sweep(SweepRequest.of(ConfiguredModel.read(path), 4), ("fsdp", "fsdp*tp*sp"))
    assert {setting.candidate.recipe for setting in result.settings} == {"fsdp", "fsdp*tp*sp"}


def test_recipes_that_do_not_fit_the_model_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def build(samples):\n"
        "    return nn.Linear(8, 8), lambda model, x: model(x).square().mean(), torch.ones(samples, 8)\n"
    )
    result = sweep(SweepRequest.of(PythonModel.read(f"{path}:build"), 4), ("fsdp", "fsdp*tp*sp"))
    assert [setting.candidate.recipe for setting in result.settings] == ["fsdp"]
    assert "skipped fsdp*tp*sp on dp=2,tp=2: tp finds no layers to shard in Linear; expected" in sweep_text(result)


def test_first_row_has_a_certificate(free: Sweep) -> None:
    result = certified(free, 1)
    first, *others = result.settings
    assert first.gap is not None and 0 <= first.gap < 0.02
    assert {setting.gap for setting in others} == {None}
    rows = [line for line in sweep_text(result).splitlines() if line.startswith("dp=")]
    assert rows[0].endswith("%") and rows[1].endswith(" -")
    assert attrs.evolve(first, gap=None) == free.settings[0]


def test_plan_of_a_row_is_a_plan_file_for_the_whole_model(free: Sweep, tmp_path: Path) -> None:
    setting = next(setting for setting in free.settings if setting.candidate.recipe == "fsdp*tp*sp")
    path = tmp_path / "plan.toml"
    path.write_text(plan_file(free, setting))
    model = free.request.workload.case(1, None).model
    assert str(sharding_plan(model, setting.candidate.mesh, str(path))) == str(free.plan(setting))
    assert "# mesh: dp=2,tp=2; axes inside a node: dp, tp\n" in path.read_text()


def test_formats_list_all_rows(free: Sweep) -> None:
    assert len(sweep_csv(free).splitlines()) == len(free.settings) + 1
    assert sweep_json(free).count('"recipe"') == len(free.settings) + len(free.skipped)
    assert sweep_html(free).count("<circle") == len(free.settings)
