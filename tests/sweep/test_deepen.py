"""Deeper programs: copies of the middle layers are what a trace of a deeper model contains."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.dialects.verifier import verify
from spmdir.sweep.candidate import candidates
from spmdir.sweep.captures import CaptureOptions, imported
from spmdir.sweep.deepen import deepen
from spmdir.sweep.workload import ConfiguredModel
from tests.sweep.test_workload import config_file

ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 5, "use_sliding_window": True}
SPARSE = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("recipe", "settings", "period", "recomputes"),
    [
        ("fsdp*tp*sp", {}, 1, False),
        ("fsdp*cp", {}, 1, True),
        ("hsdp", {"model_type": "qwen2", "num_hidden_layers": 10, **ALTERNATING}, 2, True),
        ("zero1", {"model_type": "mixtral", **SPARSE}, 1, False),
    ],
)
def test_deepened_program_is_the_trace_of_a_deeper_model(
    recipe: str, settings: dict[str, object], period: int, recomputes: bool, tmp_path: Path
) -> None:
    workload = ConfiguredModel.read(config_file(tmp_path, **settings))
    candidate = next(candidates(8, 4, [recipe]))
    traced, captured = imported(workload, candidate, CaptureOptions(8, recomputes, recomputes, 3 * period))
    deep, deep_captured = imported(workload, candidate, CaptureOptions(8, recomputes, recomputes, 5 * period))
    program = deepen(traced, 0, period, 2)
    assert program is not None
    verify(program.module)
    assert program.module.is_structurally_equivalent(deep)
    accumulated = {i for i, origin in enumerate(program.origins) if origin in captured.accumulated}
    assert accumulated == deep_captured.accumulated


def test_layers_that_differ_are_not_repeated(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    settings = {"model_type": "qwen2", "layer_types": kinds, "use_sliding_window": True, "num_hidden_layers": 3}
    workload = ConfiguredModel.read(config_file(tmp_path, **settings))
    traced, _ = imported(workload, next(candidates(8, 4, ["ddp"])), CaptureOptions(8, False, False, 3))
    assert deepen(traced, 0, 2, 1) is None
