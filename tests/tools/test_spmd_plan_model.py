"""`spmd plan-model` as its users call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spmdir.tools import spmd

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_fastest_row_comes_first_and_its_plan_is_written(config: str, tmp_path: Path, capsys) -> None:
    plan = tmp_path / "plan.toml"
    command = ["plan-model", config, "--ranks", "4", "--recipes", "fsdp,ddp", "--workers", "1"]
    assert spmd.main([*command, "--save-plan", str(plan)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny: ")
    assert lines[1].split()[:6] == ["mesh", "recipe", "micro-batches", "recompute", "regather", "step"]
    assert {line.split()[1] for line in lines[2:4]} == {"fsdp", "ddp"}
    assert "[shardings]" in plan.read_text()


def test_status_is_1_if_nothing_fits(config: str, capsys) -> None:
    assert spmd.main(["plan-model", config, "--ranks", "4", "--recipes", "ddp", "--memory", "1kB"]) == 1
    assert "nothing fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.json", "--ranks", "4"], "cannot read the configuration absent.json"),
        (["model.bin", "--ranks", "4"], "cannot plan 'model.bin'; expected a config.json, a .pt2 or FILE.py:FUNCTION"),
        (["CONFIG"], "--ranks"),
        (["CONFIG", "--ranks", "0"], "invalid number of ranks '0'"),
        (["CONFIG", "--ranks", "4", "--memory", "much"], "'much' is not a size"),
        (["CONFIG", "--ranks", "4", "--recipes", "fast"], "cannot sweep over the recipe 'fast'"),
        (["CONFIG", "--ranks", "4", "-o", "x.png"], "no format has the extension of 'x.png'"),
        (["CONFIG", "--ranks", "4", "--topology", "h100"], "unknown topology 'h100'"),
    ],
)
def test_wrong_arguments_are_errors(config: str, arguments: list[str], message: str, capsys) -> None:
    arguments = [config if argument == "CONFIG" else argument for argument in arguments]
    assert spmd.main(["plan-model", *arguments, "--workers", "1"][: None if "--ranks" in arguments else -2]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
