"""What the package keeps of its rules and rewrites is what they parse to."""

import pytest

from spmdir.checking.write_parsed import files
from spmdir.rules.language.parser import parse_rule
from spmdir.rules.parsed_rules import PARSED
from spmdir.rules.rule_set import packaged

FILES = files()


@pytest.mark.parametrize("kept", FILES, ids=lambda kept: kept.path.name)
def test_a_file_of_parsed_texts_is_up_to_date(kept):
    assert kept.path.read_text(encoding="utf-8") == FILES[kept], f"{kept.path} is old; run `make parsed-texts`"


def test_a_rule_that_is_read_back_is_the_one_that_was_parsed():
    for record in packaged().records["aten._softmax"]:
        rule, kept = (
            parse_rule(record.text, record.file, record.line),
            PARSED.find(record.text, record.file, record.line),
        )
        assert (rule.parameters, rule.results, rule.clauses) == (kept.parameters, kept.results, kept.clauses)
        assert (rule.op, rule.location) == (kept.op, kept.location)
