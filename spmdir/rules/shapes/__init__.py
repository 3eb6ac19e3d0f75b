"""Match the patterns of a rule to the shapes of one call, to find the factors of each dimension.

May import: core, rules.language.
Start with shape_matching.py. dimension_maps.py lists the dimension maps of views, slices and indices.
"""
