"""The public names, each with the module that defines it."""

from spmdir.checking.placements import PlacementReport as PlacementReport
from spmdir.checking.placements import check_placement as check_placement
from spmdir.checking.rules import check_rules as check_rules
from spmdir.checking.rules.report import RuleReport as RuleReport
from spmdir.simulator.pipelined_step import simulate_step as simulate_step
