"""The schedule of one rank: ops as plain tasks with times, transfers and buffers, and the cost of an order of tasks.

May import: core.
Start with program.py (tasks), then simulate.py (times) and memory.py.
"""
