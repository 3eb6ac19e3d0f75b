"""Placements, and the values that contain them: shardings, tensor types, calls and sharding plans.

Start with base.py, the base classes of all placements, and standard.py with `R`, `S` and `P`.
"""
