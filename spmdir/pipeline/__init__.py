"""Pipelines of passes: their text, how they run, and what the passes have in common. Passes are known by name.

Base classes of passes are in preconditions.py and local_pass.py; trial runs on copies of a program in trials.py; the
inlining and outlining of equal layers in layer_runner.py and layers; the note of the options that propagate decided
by, and the machine that it names, in noted_options.py.

May import: core, rules, reshard, schedule, dialects, plugins, analysis, rewrites; never torch.
Start with pass_table.py, the table of contents, and pipeline.py, which runs them.
"""
