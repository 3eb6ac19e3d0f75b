"""Convert the program of one rank to the input of a scheduler: tasks, transfers and buffers.

Start with rank_program.py.
"""
