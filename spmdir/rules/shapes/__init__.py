"""Shape matching: a rule and one call → the factors that make up each dimension.

May import: core, rules.language.
Start with shape_matching.py; maps/ holds the dimension maps of views, slices and indices.
"""
