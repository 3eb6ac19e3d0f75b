"""Validation of rules by execution: strategies on simulated ranks are compared with one device."""

from spmdir.checking.rules.check_rules import check_rules

__all__ = ["check_rules"]
