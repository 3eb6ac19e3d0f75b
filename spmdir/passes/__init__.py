"""The passes over the IR, one in each file. `pipeline/pass_table.py` lists them.

May import: core, placements, pipelined, rules, reshard, search, schedule, dialects, analysis, transforms, rewrites,
pipeline; never torch.
Start with propagate.py, which decides all shardings. Then read insert_reshard.py and lower_reshard.py.
"""
