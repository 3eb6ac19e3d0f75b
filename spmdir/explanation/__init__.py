"""Why a program is partitioned as it is, and what would differ: each answer is decided again.

May import: core, rules, reshard, search, dialects, analysis, transforms, pipeline, passes, report.
Start with explain.py and decided.py.
"""
