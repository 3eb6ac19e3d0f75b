"""The global program of a local program, the promises of its signature, and a cache of its type check.

Start with globalize.py, which undoes localize.
"""
