"""Pipelines of passes: their text, how they run, and what the passes have in common. Passes are known by name.

Base classes of passes are in base_passes.py; trial runs on copies of a program in trials.py; when
layers are inlined and outlined in layer_runner.py; the note of the options that propagate decided
by, and the machine that it names, in noted_options.py.

May import: core, rules, reshard, schedule, dialects, plugins, analysis, transforms, rewrites; never torch.
Start with pass_table.py, the table of contents, and pipeline.py, which runs them.
"""
