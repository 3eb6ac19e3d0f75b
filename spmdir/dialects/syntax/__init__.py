"""The text form: the IR context, the op parser, the op printer and literals in brackets.

May import: core, rules, and the ops and attributes beside it.
Start with context.py.
"""
