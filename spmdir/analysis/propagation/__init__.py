"""The problem that `propagate` has solved: strategies of ops, reshards between them, and how a decision is written.

Start with build_problem.py.
"""
