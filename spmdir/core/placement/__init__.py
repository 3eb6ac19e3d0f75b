"""What a placement is (base), the standard ones `R`, `S` and `P` (standard), and their text.

It has what is made of placements too: shardings, tensor types, calls, plans.
Start with base.py: every placement, shipped or plug-in, declares itself by its classes.
"""
