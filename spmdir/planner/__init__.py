"""Resharding: legal steps, what they cost, the cheapest plan, and the least that any plan could move."""

from spmdir.planner.bound import lower_bound
from spmdir.planner.plan import Plan, plan_reshard
from spmdir.planner.price import axis_price
from spmdir.planner.report import CommReport, Share, comm_report
from spmdir.planner.steps import Step, transition
from spmdir.planner.topology import H100X8, TOPOLOGIES, Topology

__all__ = [
    "H100X8",
    "TOPOLOGIES",
    "CommReport",
    "Plan",
    "Share",
    "Step",
    "Topology",
    "axis_price",
    "comm_report",
    "lower_bound",
    "plan_reshard",
    "transition",
]
