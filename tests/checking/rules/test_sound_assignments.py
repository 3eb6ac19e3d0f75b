"""What would be right, found by trying: known answers."""

from __future__ import annotations

import torch

from spmdir.checking.rules.call_checks import check_op, find_missing
from spmdir.checking.rules.samples.sample import Sample, b, f, i, sample
from spmdir.checking.rules.sound_assignments import AssignmentTrial, SoundAssignment
from spmdir.checking.rules.soundness import call_of, prepare
from spmdir.checking.rules.worker_options import Options
from spmdir.core.placement.standard import Partial, R
from spmdir.rules import RuleSet
from spmdir.rules.language.records import read
from spmdir.rules.rule_set import default


def sound_assignments(case: Sample, size_arguments: tuple[str, ...] = ()) -> list[SoundAssignment]:
    torch.manual_seed(0)
    trial = AssignmentTrial(*call_of(case), size_arguments)
    assignments = (trial.check_assignment(operands, (2, 3)) for operands in trial.assignments())
    return [assignment for assignment in assignments if assignment]


def texts(case: Sample, size_arguments: tuple[str, ...] = ()) -> set[str]:
    return set(map(str, sound_assignments(case, size_arguments)))


def test_a_product_of_matrices():
    assert texts(sample("mm", f(5, 6), f(6, 4))) == {
        "(R, R) -> (R)",
        "(S(0), R) -> (S(0))",
        "(S(1), S(0)) -> (P(sum))",
        "(R, S(1)) -> (S(1))",
        "(P(sum), R) -> (P(sum))",
        "(R, P(sum)) -> (P(sum))",
    }


def test_two_maxima_may_lie_on_different_ranks():
    assert "(P(max), P(max)) -> (P(max))" not in texts(sample("add.Tensor", f(5, 4), f(5, 4)))
    assert "(P(max), P(max)) -> (P(max))" in texts(sample("maximum", f(5, 4), f(5, 4)))


def test_truth_values():
    found = texts(sample("logical_or", b(5, 4), b(5, 4)))
    assert {"(P(any), P(any)) -> (P(any))", "(R, P(all)) -> (P(all))"} <= found
    assert "(P(all), P(all)) -> (P(all))" not in found


def test_results_are_placed_each_for_itself():
    ((index, values),) = [
        p.results for p in sound_assignments(sample("max.dim", f(5, 4), dim=1)) if str(p.operands[0]) == "S(0)"
    ]
    assert str(index[0]) == str(values[0]) == "S(0)"


def test_arguments_that_hold_sizes_may_be_local():
    case = sample("view", f(6, 4), size=(6, 2, 2))
    assert texts(case, ()) == {t for t in texts(case, ("size",)) if "S(" not in t}
    assert "(S(0)) -> (S(0))" in texts(case, ("size",))


def test_operands_whose_values_do_not_matter():
    call, operands, expected = call_of(sample("zeros_like", f(5, 4)))
    assert AssignmentTrial(call, operands, expected).ignored_operands() == {0}
    call, operands, expected = call_of(sample("gather", f(5, 4), i(5, 5, 4), dim=0))
    assert AssignmentTrial(call, operands, expected).ignored_operands() == frozenset()


def test_many_operands_are_tried_in_part():
    trial = AssignmentTrial(*call_of(sample("cat", [f(3, 2, 2, 2) for _ in range(3)])))
    assert len(trial.assignments()) == 8
    assert (R, R, R) in trial.assignments() and (Partial("sum"),) * 3 in trial.assignments()


def test_what_a_partial_maximum_offers_is_offered_for_replicated_operands_too():
    case = prepare(sample("slice_scatter", f(5, 4), f(5, 2), dim=1, start=1, end=3), default())
    assert "(P(max), P(max)) -> (P(max))" in map(str, case.rule.strategies(2))
    assert not [p for p in find_missing(case).sound if any(o.op == "max" for o in p.operands)]


def unlisted(text: str) -> RuleSet:
    """Return the rules with `text` in place of those of the same op."""
    return RuleSet({**default().records, **read(text, "own.rules")})


def test_a_strategy_that_infinities_break_is_not_missing():
    rules = unlisted("aten.add.Tensor(self: *, other: *, alpha=1) -> *    linear self other")
    samples = [sample("add.Tensor", f(*shape), f(*shape), alpha=0.5) for shape in [(4, 6), (5, 7)]]
    report = check_op("aten.add.Tensor", samples, rules, Options((2,)), print)
    assert report.sound and not report.unsound
    assert not report.missing


def test_a_strategy_that_is_wrong_in_a_sample_of_the_same_kind_is_not_missing():
    rules = unlisted("aten.mul.Tensor(self: *, other: *) -> *    linear self; linear other")
    ones = torch.ones(4, 6, dtype=torch.int64)
    positive, negative = (sample("mul.Tensor", f(4, 6), factors) for factors in (ones, -ones))
    assert "(P(max), R) -> (P(max))" in map(str, find_missing(prepare(positive, rules)).sound)
    report = check_op("aten.mul.Tensor", [positive, negative], rules, Options((2,)), print)
    assert not [m.strategy for m in report.missing if m.strategy.startswith("(P(max), R)")]
