"""The sharding search: a graph of nodes with strategies, solved one mesh axis at a time.

May import: core, rules, reshard.
Start with problem.py (the tables), then solve.py.
"""
