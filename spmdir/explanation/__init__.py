"""Explain decisions: why a value has its sharding, and how a change of annotations would change the program.

Each alternative is a new decision of the whole program.

May import: core, rules, reshard, search, dialects, analysis, transforms, pipeline, passes, report.
Start with explain.py and decided_program.py.
"""
