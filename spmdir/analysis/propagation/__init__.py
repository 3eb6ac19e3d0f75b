"""The problem that `propagate` solves: values, strategies of ops, user annotations and kept arguments.

Start with build_problem.py.
"""
