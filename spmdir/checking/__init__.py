"""Proof of rules by execution."""

from spmdir.checking.check import check_rules

__all__ = ["check_rules"]
