"""The public names, each with the module that defines it."""

from spmdir.rules.list_strategies import op_strategies as op_strategies
from spmdir.rules.op_rule import OpRule as OpRule
from spmdir.rules.rule_set import RuleSet as RuleSet
from spmdir.rules.rule_set import using_rules as using_rules
from spmdir.rules.strategies.obstacle import Dropped as Dropped
from spmdir.rules.strategies.strategy import Strategy as Strategy
