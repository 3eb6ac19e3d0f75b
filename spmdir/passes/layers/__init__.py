"""Equal layers of a program as functions with calls, and the passes that run once a layer.

May import: core, dialects, passes.
Start with outline.py, which makes the functions.
"""
