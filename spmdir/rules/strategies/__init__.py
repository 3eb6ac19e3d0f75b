"""The strategies that an instantiated rule has on one mesh axis.

May import: core, rules.language, rules.shapes, rules.instance, rules.local.
Start with per_axis.py; the plugin_ files add what placements other than R, S and P bring.
"""
