"""What each op does to shardings: rules are text, and one engine reads them all."""

from spmdir.rules.language.syntax_tree import Rule
from spmdir.rules.local.expansion import Expansion, Piece, Reduced, Value
from spmdir.rules.op_rule import OpRule
from spmdir.rules.rule_set import RuleSet, default, load_rules
from spmdir.rules.strategies.divisibility import Factor
from spmdir.rules.strategies.strategy import Strategy

__all__ = [
    "Expansion", "Factor", "OpRule", "Piece", "Reduced", "Rule", "RuleSet", "Strategy", "Value",
    "default", "load_rules",
]  # fmt: skip
