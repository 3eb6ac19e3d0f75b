"""The parts of `propagate`: the candidates of each node, nesting order and sub-axes.

May import: whatever passes may.
Start with plugin_candidates.py.
"""
