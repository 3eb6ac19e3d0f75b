"""Workloads: how layers repeat, and what a file must contain."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.sweep.workload import ConfiguredModel, LayerPattern, PythonModel, layers_of

TINY = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def config_file(folder: Path, **settings: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({**TINY, **settings}))
    return str(path)


@pytest.mark.parametrize(
    ("kinds", "layers", "depths"),
    [
        ("a" * 32, LayerPattern(32, 0, 1), (3, 12)),
        ("d" + "a" * 31, LayerPattern(32, 1, 1), (4, 13)),
        ("ab" * 20, LayerPattern(40, 0, 2), (6, 16)),
        ("aaab" * 10, LayerPattern(40, 0, 4), (12, 24)),
        ("ababababa", LayerPattern(9, 1, 2), (9,)),
        ("aaaaa", LayerPattern(5, 0, 1), (5,)),
        ("abcd", LayerPattern(4, 3, 1), (4,)),
        ("a", LayerPattern(1, 0, 1), (1,)),
    ],
)
def test_fewest_layers_that_show_a_period(kinds: str, layers: LayerPattern, depths: tuple[int, ...]) -> None:
    assert layers_of(kinds) == layers
    assert layers.depths == depths
    assert (layers.count - layers.first) % layers.period == 0


def test_configuration_has_equal_layers_and_its_own_sequence_length(tmp_path: Path) -> None:
    workload = ConfiguredModel.read(config_file(tmp_path))
    assert (workload.name, workload.sequence, workload.layers) == ("llama", 128, LayerPattern(6, 0, 1))
    assert len(workload.case(2, 3).model.get_submodule("model.layers")._modules) == 3
    assert workload.case(2, None).batch[0].shape == (2, 128)


def test_alternating_attention_has_a_longer_period(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 3
    path = config_file(tmp_path, model_type="qwen2", layer_types=kinds, use_sliding_window=True)
    assert ConfiguredModel.read(path).layers == LayerPattern(6, 0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "has no model_type; expected the config.json of a model of transformers"),
        ('{"model_type": "no such model"}', "transformers cannot read the configuration of 'no such model'"),
        (
            json.dumps({**TINY, "num_hidden_layers": 10**9}),
            "is 1000000000; expected an integer from 0 to 1024",
        ),
        (json.dumps({**TINY, "hidden_size": "wide"}), "transformers cannot"),
    ],
)
def test_unusable_configuration_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SpmdirError, match=message):
        ConfiguredModel.read(str(path)).case(1, 1)


def test_function_of_a_file_builds_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def build(samples, layers=5):\n"
        "    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])\n"
        "    return model, lambda model, x: model(x).square().mean(), torch.ones(samples, 8)\n"
        "def wrong(samples):\n    return 1\n"
        "def failing(samples):\n    return 1 / 0\n"
    )
    workload = PythonModel.read(f"{path}:build")
    assert workload.layers == LayerPattern(5, 0, 1)
    case = workload.case(4, 2)
    assert len(list(case.model.parameters())) == 4
    assert case.batch[0].shape == (4, 8)
    assert "model" not in sys.modules
    for name, message in [
        ("wrong", "returns 1; expected"),
        ("failing", r"model\.py:9:1: error: plug-in failed: ZeroDivisionError"),
        ("absent", "no function"),
    ]:
        with pytest.raises(SpmdirError, match=message):
            PythonModel.read(f"{path}:{name}").case(1, None)
