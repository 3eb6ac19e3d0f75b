"""`python -m spmdir.checking.write_parsed`: write the parsed form of the packaged rules and rewrites."""

from __future__ import annotations

from spmdir.core.parse_cache import ParsedTexts
from spmdir.rewrites.op_rewrite_text import EXPERTS, parse_op_rewrites
from spmdir.rewrites.op_rewrite_text import PARSED as PARSED_OP_REWRITES
from spmdir.rewrites.rewrite_files import PARSED as PARSED_REWRITES
from spmdir.rewrites.rewrite_files import REWRITES
from spmdir.rewrites.rewrite_text import parse_rewrites
from spmdir.rules.language.checks import check
from spmdir.rules.language.parser import parse_rule, parse_strategy
from spmdir.rules.parsed_rules import PARSED as PARSED_RULES
from spmdir.rules.rule_set import packaged
from spmdir.rules.shapes.dimension_maps import MAPS


def files() -> dict[ParsedTexts, str]:
    """Return each file of parsed texts, with its new content."""
    packages = packaged()
    records = [record for records_of_op in packages.records.values() for record in records_of_op]
    rules = [(record.text, record.line, parse_rule(record.text, record.file, record.line)) for record in records]
    for _, _, rule in rules:
        check(rule, MAPS)
    declared = [record for records_of_op in packages.declared.values() for record in records_of_op]
    strategies = [
        (record.text, record.line, parse_strategy(record.text, record.file, record.line)) for record in declared
    ]
    rewrites, op_rewrites = (path.read_text(encoding="utf-8") for path in (REWRITES, EXPERTS))
    return {
        PARSED_RULES: PARSED_RULES.spell([*rules, *strategies]),
        PARSED_REWRITES: PARSED_REWRITES.spell([(rewrites, 1, parse_rewrites(rewrites))]),
        PARSED_OP_REWRITES: PARSED_OP_REWRITES.spell([(op_rewrites, 1, parse_op_rewrites(op_rewrites, EXPERTS.name))]),
    }


def main() -> None:
    """Write the files."""
    for file, text in files().items():
        file.path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
