"""Read-only analyses of a program: types, live memory, phases, the program of one rank, the problem of the search.

May import: core, rules, reshard, search, schedule, dialects; never torch.
Start with type_check.py, which says how each op runs, and live_memory.py, which says what a rank holds.
"""
