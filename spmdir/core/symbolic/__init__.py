"""Sizes that are known only when a program runs: expressions, and the symbols with their ranges.

May import: errors and limits of core.
Start with expressions.py.
"""
