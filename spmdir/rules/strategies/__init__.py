"""Derive the strategies of an instantiated rule on one mesh axis.

May import: core, rules.language, rules.shapes, rules.instance, rules.local.
Start with per_axis.py. The plugin_ files add strategies with placements other than R, S and P.
"""
