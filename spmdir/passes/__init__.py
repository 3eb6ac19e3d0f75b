"""The passes over the IR, one file each; `pipeline/pass_table.py` lists them.

May import: core, rules, reshard, search, schedule, dialects, analysis, transforms, rewrites, pipeline; never torch.
Start with propagate.py, which decides, then insert_reshard.py and lower_reshard.py.
"""
