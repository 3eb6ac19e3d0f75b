"""Functions that change a program and are used by several passes, or by a pass and the runtime.

May import: core, pipelined, rules, reshard, search, schedule, dialects, analysis; never torch.
Start with replace_by_local_form.py, which localize calls for an op, and layers/outline.py.
"""
