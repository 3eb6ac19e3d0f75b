"""What a partitioned program costs, told to people: communication by kind and axis, and how far results may be off.

May import: core, rules, reshard, dialects, passes.
Start with communication.py.
"""
