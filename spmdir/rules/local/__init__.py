"""Rewrites of one op: its expansion into ops on global tensors, its local form of ops on local tensors.

May import: core, rules.language, rules.shapes, rules.instance.
Start with replacement.py.
"""
