"""The type check of a distributed program: which strategy of its rule each op uses.

May import: whatever passes may.
Start with type_check.py.
"""
