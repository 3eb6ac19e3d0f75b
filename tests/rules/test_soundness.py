from pathlib import Path

import pytest

from spmdir.checking.rules.call_checks import number_verdicts, variants
from spmdir.checking.rules.number_variants import number_variants
from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.samples.sample import Sample, b, f, i, sample
from spmdir.checking.rules.soundness import axis_verdicts, call_of, prepare, unsound
from spmdir.rules.instantiate import choose_rule
from spmdir.rules.language.syntax_tree import PASSING
from spmdir.rules.rule_set import default

SAMPLES = all_samples(default())


FIRST = {sample.op: sample for sample in reversed(SAMPLES)}
"""One sample of each op; `make check-rules` runs all on 4 ranks."""


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.op)
def test_every_strategy_gives_what_the_op_gives(sample: Sample):
    counts = (2, 3, 4) if sample is FIRST[sample.op] else (2, 3)
    assert not (wrong := unsound(sample, default(), counts)), "\n".join(wrong)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.op)
def test_every_strategy_gives_what_the_op_gives_of_nan_and_infinities(sample: Sample):
    for name, case in variants(sample, prepare(sample, default()), default()):
        wrong = [
            f"{name}: {verdict.strategy}: {verdict.fault}" for verdict in axis_verdicts(case, (2,)) if verdict.fault
        ]
        assert not wrong, "\n".join(wrong)


def may_turn_on_numbers(sample: Sample) -> bool:
    """Return whether partial values or local forms could be wrong for some numbers; `make check-rules` tries all
    calls."""
    lines = default().alternatives(sample.op)
    return any(line.of_kind(*PASSING, "reduce", "local") for line in lines) and any(number_variants(sample))


OF_NUMBERS = {sample.op: sample for sample in reversed(SAMPLES) if may_turn_on_numbers(sample)}


@pytest.mark.parametrize("sample", OF_NUMBERS.values(), ids=lambda s: s.op)
def test_every_strategy_gives_what_the_op_gives_for_zero_infinite_and_nan_numbers(sample: Sample):
    verdicts = number_verdicts(sample, prepare(sample, default()), default())
    assert not [f"{name}: {verdict.strategy}: {verdict.fault}" for name, verdict in verdicts if verdict.fault]


@pytest.mark.parametrize(
    ("text", "case", "number", "row"),
    [
        ("aten.div.Scalar(self: *, other) -> *    linear self", sample("div.Scalar", f(5, 4), other=2.0),
         "other=0.0", "P(sum)"),
        ("aten.add.Tensor(self: *, other: *, alpha) -> *    commutes max in self if finite(other)",
         sample("add.Tensor", f(5, 4), 2.0), "alpha=inf", "P(max)"),
        ("aten.leaky_relu(self: *, negative_slope) -> *    commutes max", sample("leaky_relu", f(5, 4)),
         "negative_slope=-1.0", "P(max)"),
        ("aten.celu(self: *, alpha) -> *    commutes max", sample("celu", f(5, 4)), "alpha=inf", "P(max)"),
    ],
)  # fmt: skip
def test_a_rule_that_is_wrong_for_some_numbers_is_found_out(
    tmp_path: Path, text: str, case: Sample, number: str, row: str
):
    path = tmp_path / "wrong.rules"
    path.write_text(text)
    rules = default().with_file(path)
    assert not unsound(case, rules)
    faults = {
        (name, verdict.strategy)
        for name, verdict in number_verdicts(case, prepare(case, rules), rules)
        if verdict.fault
    }
    assert any(name == number and row in strategy for name, strategy in faults)


def test_every_rule_has_a_sample():
    calls = [call_of(sample)[0] for sample in SAMPLES]
    used = set()
    for call in calls:
        found = choose_rule(default().alternatives(call.name), call)
        assert found is not None
        used.add(found[0].location)
    # What is left after other lines of an op, to run replicated, may be beyond what a CPU can run.
    rules = [
        rule for rule in default().parse_all() if rule is default().lookup(rule.op) or not rule.of_kind("replicated")
    ]
    assert not [str(rule.location) for rule in rules if rule.location not in used]


WRONG = [
    ("aten.relu(self: *) -> *    linear self", sample("relu", f(5, 4)), "P(sum)"),
    ("aten.abs(self: *) -> *    commutes max", sample("abs", f(5, 4)), "P(max)"),
    ("aten.exp(self: *) -> *    swaps", sample("exp", f(5, 4)), "P(min)"),
    ("aten.mul.Tensor(self: *, other: *) -> *    linear self other", sample("mul.Tensor", f(4), f(4)), "P(sum)"),
    ("aten.addmm(self: n, mat1: m k, mat2: k n, beta, alpha) -> m n    sum k",
     sample("addmm", f(3), f(5, 4), f(4, 3)), "(R, S(1), S(0))"),
    ("aten.cumsum(self: *, dim, dtype) -> *", sample("cumsum", f(5, 4), dim=1), "S(1)"),
    ("aten.mean(self: *, dtype) -> scalar    sum *", sample("mean", f(4, 4)), "P(sum)"),
    ("aten.embedding(weight: v d, indices: *b, padding_idx, scale_grad_by_freq, sparse) -> *b d    sum v",
     sample("embedding", f(6, 4), i(6, 5)), "(S(0), R)"),
    ("aten.any(self: *) -> scalar    all *", sample("any", b(5, 4)), "P(all)"),
    ("aten.amin(self: *, dim, keepdim=false) -> *-dim    max dim", sample("amin", f(5, 4), dim=(1,)), "P(max)"),
    ("aten.sort(self: *, dim=-1, descending) -> *, *", sample("sort", f(5, 4)), "S(1)"),
    ("aten.full(size, fill_value, dtype, layout, device, pin_memory) -> *", sample("full", size=(5, 4), fill_value=1),
     "S(0)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "case", "row"), WRONG, ids=[case.op for _, case, _ in WRONG])
def test_a_wrong_rule_is_found_out(tmp_path: Path, text: str, case: Sample, row: str):
    path = tmp_path / "wrong.rules"
    path.write_text(text)
    assert any(row in fault for fault in unsound(case, default().with_file(path)))
