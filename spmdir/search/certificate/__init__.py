"""A proof of how good a decision is: a lower bound on the cost of every decision of a problem, on all axes together.

May import: core, rules, reshard and search; of other packages NumPy, which spmdir always has.
Start with dual_bound.py, which explains why the bound holds.
"""
