"""The rule language: text of one op's rule → its syntax tree, checked; expressions and the functions that they call.

May import: core. Knows tensors by their types only, never which factors make up their dimensions.
Start with rules.lark, then syntax_tree.py.
"""
