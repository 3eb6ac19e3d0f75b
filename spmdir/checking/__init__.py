"""Proof by running: rules against torch, placements against their laws.

May import: everything below, to runtime.
Start with rules/check_rules.py and placements/check_placement.py.
"""
