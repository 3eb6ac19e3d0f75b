"""The benchmark of rules tells wrong placements of results from right ones."""

from __future__ import annotations

import pytest

from benchmarks.rule_coverage import _wrong
from spmdir.checking.rules.samples.sample import f, sample
from spmdir.checking.rules.sound_assignments import AssignmentTrial
from spmdir.checking.rules.soundness import call_of
from spmdir.core.placement.standard import Partial, Placement, R, Shard


@pytest.mark.parametrize(("result", "kind"), [(Partial("sum"), ""), (R, "wrong"), (None, "")])
def test_an_answer_is_wrong_if_the_ranks_have_other_results(result: Placement | None, kind: str) -> None:
    trials = [AssignmentTrial(*call_of(sample("mm", f(4, 6), f(6, 4))))]
    assert _wrong(trials, (Shard(1), Shard(0)), [(result,)]) == kind
