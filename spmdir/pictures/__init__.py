"""Pictures of partitioned programs: tensors with their shards, for terminals, notebooks and files.

May import: core, dialects.
Start with visualize.py and tiling.py.
"""
