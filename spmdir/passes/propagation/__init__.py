"""The parts of `propagate`: its problem for the search, strategies of ops, sub-axes, and how a decision is written.

May import: whatever passes may.
Start with build_problem.py.
"""
