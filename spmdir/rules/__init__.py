"""What each op does to shardings: rules are text, one line an op, and one engine reads them all.

May import: core. Inside: language ← shapes ← local ← strategies ← op_rule ← instantiate ← rule_set.
Start with aten/contraction.rules, then shapes/instance.py and strategies/per_axis.py; docs/rules.md is the reference.
"""

from spmdir.rules.language.syntax_tree import Rule
from spmdir.rules.local.expansion import ExpandedOp, Expansion, Value
from spmdir.rules.op_rule import OpRule
from spmdir.rules.rule_set import RuleSet, default, load_rules
from spmdir.rules.shapes.factor import Factor
from spmdir.rules.strategies.expansion_layout import Reduced
from spmdir.rules.strategies.strategy import Strategy

__all__ = [
    "ExpandedOp", "Expansion", "Factor", "OpRule", "Reduced", "Rule", "RuleSet", "Strategy", "Value",
    "default", "load_rules",
]  # fmt: skip
