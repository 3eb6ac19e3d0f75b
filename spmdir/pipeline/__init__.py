"""Pipelines of passes: their text, their execution, and the base classes of passes.

Passes are referenced by name. layer_runner.py inlines and outlines layers between passes. trials.py runs passes on
copies of a program. recorded_options.py reads and writes the options that decided a function, and their machine.

May import: core, rules, reshard, schedule, dialects, plugins, analysis, transforms, rewrites; never torch.
Start with pass_table.py, which lists the passes, and pipeline.py, which runs them.
"""
