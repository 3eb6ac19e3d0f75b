import pytest

from spmdir.rules import default
from spmdir.rules.op_rule import fits
from tests.rules.samples import all_samples
from tests.rules.soundness import Sample, call_of, unsound

SAMPLES = all_samples(default())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.op)
def test_every_strategy_gives_what_the_op_gives(sample: Sample):
    assert not (wrong := unsound(sample, default())), "\n".join(wrong)


def test_every_rule_has_a_sample():
    calls = [call_of(sample)[0] for sample in SAMPLES]
    used = set()
    for call in calls:
        used.add(next(rule.location for rule in default().alternatives(call.name) if fits(rule, call)))
    assert not [str(rule.location) for rule in default().parse_all() if rule.location not in used]
