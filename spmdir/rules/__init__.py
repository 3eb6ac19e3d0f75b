"""What each op does to shardings: rules are text, and one engine reads them all."""

from spmdir.rules.dividing import Factor
from spmdir.rules.expansion import Expansion, Piece, Reduced, Value
from spmdir.rules.listing import strategies
from spmdir.rules.op_rule import OpRule
from spmdir.rules.rule_set import RuleSet, default, load_rules
from spmdir.rules.strategy import Strategy
from spmdir.rules.syntax import Rule

__all__ = [
    "Expansion", "Factor", "OpRule", "Piece", "Reduced", "Rule", "RuleSet", "Strategy", "Value",
    "default", "load_rules", "strategies",
]  # fmt: skip
