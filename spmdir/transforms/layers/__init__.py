"""Equal layers of a program as functions with calls, and the inlining of calls.

Start with outline.py, which creates the functions, and inlining.py, which inlines calls again.
"""
