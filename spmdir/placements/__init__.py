"""The placements other than the standard ones. Each file is written like a plug-in.

May import: core.
Start with cyclic.py.
"""
