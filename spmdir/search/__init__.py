"""The sharding search: a graph of nodes with strategies, decided two mesh axes at a time.

May import: core, rules, reshard.
Start with problem.py (nodes and strategies), then solve.py and block_search.py.
"""
