"""Read-only analyses of a program: types, live memory, phases, the program of one rank, the problem of the search.

May import: core, pipelined, rules, reshard, search, schedule, dialects; never torch.
Start with type_check.py, the strategies of ops, and live_memory.py, the buffers of a rank.
"""
