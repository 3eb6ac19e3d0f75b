"""The program of one rank as a scheduler sees it: tasks, transfers and buffers.

Start with rank_program.py.
"""
