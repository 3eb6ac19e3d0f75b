"""Placements beside the standard ones: a file each, written as any plug-in is.

May import: core.
Start with cyclic.py.
"""
