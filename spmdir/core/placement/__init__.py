"""What a placement is (base), the standard ones `R`, `S` and `P` (standard), and their text.

May import: the modules of core that stand beside it.
Start with base.py: every placement, shipped or plug-in, declares itself by its classes.
"""
