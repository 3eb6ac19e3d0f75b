"""What a partitioned program costs, told to people: communication by kind and axis.

May import: core, reshard, dialects, passes.
Start with communication.py.
"""
