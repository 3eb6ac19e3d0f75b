"""What programs of one rank compute: the global program that one stands for, and what may be relied on in it.

Start with globalize.py, which undoes localize.
"""
