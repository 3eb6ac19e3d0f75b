"""Experts that transformers multiplies in groups: rows sorted by expert, one product for each."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.models import cases, catalog

BY_EXPERT = {"*.experts.gate_up_proj": "tp: S(0)", "*.experts.down_proj": "tp: S(0)"}
BY_FEATURE = {"*.experts.gate_up_proj": "dp: S(2)", "*.experts.down_proj": "dp: S(1), tp: S(2)"}


@cache
def _program() -> cases.Program:
    """Return the exported program, which is run on one device too: in eager, torch has no grouped product of f64."""
    torch.manual_seed(0)
    model = catalog.grouped_mixtral(catalog.ODD).double().eval()
    ids = torch.randint(0, catalog.ODD.vocabulary, (3, 7))
    exported = torch.export.export(model, (ids,), {"use_cache": False})
    return cases.Program(exported, [ids], exported.state_dict, [exported.module()(ids, use_cache=False).logits])


@pytest.mark.parametrize("plan", [{}, BY_EXPERT, BY_FEATURE], ids=["open", "by expert", "by feature"])
def test_experts_may_be_sharded_in_every_way(plan):
    assert max(cases.errors(_program(), cases.LAYOUTS["2x4"], plan)) < 1e-9
