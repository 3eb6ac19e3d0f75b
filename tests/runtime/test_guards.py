"""The settings that a program depends on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from spmdir.runtime.guards import setting_facts


def test_settings_are_in_one_order_whatever_the_hash_seed_of_the_process() -> None:
    used = {"requires_grad", "is_inference", "are_deterministic_algorithms_enabled", "environ"}
    code: Any = SimpleNamespace(users_names=used)
    names = list(setting_facts(code, torch.device("cpu")))
    assert names == [
        "torch.get_default_dtype()",
        "torch.get_default_device()",
        "torch.is_grad_enabled()",
        "torch.is_inference_mode_enabled()",
        "torch.are_deterministic_algorithms_enabled()",
        "os.environ",
        "torch.autocast",
    ]
