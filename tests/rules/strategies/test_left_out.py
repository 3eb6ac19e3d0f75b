"""Where S shards a factor, a placement that shards does too, or the op says why not."""

from __future__ import annotations

import contextlib

import pytest

from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.sound_assignments import FAILURES
from spmdir.checking.rules.soundness import prepare
from spmdir.core.placement.standard import Placement, R, parse_placement
from spmdir.rules import OpRule
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.obstacle import Dropped


def left_out(rule: OpRule, placement: Placement) -> set[int]:
    """Return the factors that S shards and `placement` does not, without a reason."""
    every = rule.considered(2, placements=(placement,))
    offered = [one for one in every if not isinstance(one, Dropped)]
    by_s = {f for one in rule.strategies(2) for f in one.factors if {*one.operands, *one.results} != {R}}
    by_placement = {
        factor
        for one in offered
        for factor in one.factors
        if any(type(placed) is type(placement) for placed in (*one.operands, *one.results))
    }
    told = {one.factor for one in every if isinstance(one, Dropped) and one.placement == placement}
    return by_s - by_placement - told


@pytest.mark.filterwarnings("ignore")
def test_no_op_leaves_a_placement_out_without_a_reason():
    rules, placement = default(), parse_placement("ZigZag(0)")
    found = {}
    for op, sample in {sample.op: sample for sample in all_samples(rules)}.items():
        with contextlib.suppress(*FAILURES):
            if factors := left_out(prepare(sample, rules).rule, placement):
                found[op] = factors
    assert found == {}
