"""Pipelines of passes: their text, how they run, and what the passes have in common. Passes are known by name.

May import: core, rules, reshard, schedule, dialects, plugins, analysis, rewrites; never torch.
Start with pass_table.py, the table of contents, and pipeline.py, which runs them.
"""
