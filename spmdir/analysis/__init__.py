"""What passes and reports ask of a program, and which none of them changes: types, memory, times, phases, its machine.

May import: core, rules, reshard, search, schedule, dialects; never torch.
Start with type_check.py, which says how each op runs, and live_memory.py, which says what a rank holds.
"""
