"""Validation by execution: rules are compared with torch, placements are checked against their laws.

May import: core, placements, rules, reshard, dialects, plugins, rewrites, pipeline, torch_interop, lowering,
simulator.
Start with rules/check_rules.py and placements/check_placement.py.
"""
