"""The problem that `propagate` has solved: values, strategies of ops, and what is kept as the user annotates it.

Start with build_problem.py.
"""
