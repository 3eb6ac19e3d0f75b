"""The schedule of one rank: its ops as plain tasks with times, transfers and buffers, and what an order of them takes.

May import: core.
Start with program.py (tasks), then simulate.py (times) and memory.py.
"""
