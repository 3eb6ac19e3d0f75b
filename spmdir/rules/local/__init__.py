"""The ops that replace one op: its expansion on global tensors, its local form on one rank's.

May import: core, rules.language, rules.shapes, rules.instance.
Start with replacement.py.
"""
