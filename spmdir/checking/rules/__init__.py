"""Proof of rules by execution."""

from spmdir.checking.rules.check_rules import check_rules

__all__ = ["check_rules"]
