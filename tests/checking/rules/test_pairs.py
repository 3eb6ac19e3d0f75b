"""Strategies of one axis each, combined on meshes of two and three axes."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.soundness import Case, are_compatible, judge, prepare
from spmdir.core.mesh import Mesh
from spmdir.rules.rule_set import default


@cache
def samples() -> list[Sample]:
    return all_samples(default())


@cache
def case(index: int) -> Case:
    return prepare(samples()[index], default())


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (2, 2, 2)], ids=str)
def test_strategies_that_hold_together_are_right_together(sizes: tuple[int, ...]):
    @settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])  # fmt: skip
    @given(st.integers(0, len(samples()) - 1), st.data())
    def check(index: int, data: st.DataObject):
        tried = case(index)
        rows = [data.draw(st.sampled_from(tried.rule.strategies(size)), label=f"{size} ranks") for size in sizes]
        assume(are_compatible(tried.rule, rows, sizes))
        mesh = Mesh({f"x{i}": size for i, size in enumerate(sizes)})
        verdict = judge(tried, list(zip(mesh.axis_names, rows, strict=True)), mesh)
        assert not verdict.fault, f"{tried.rule.rule.op} {tried.rule.text()} {verdict}"

    check()
