"""What importer and lowering share of torch: op schemas, element types and values, memory layouts.

May import: core; torch.
Start with schemas.py and dtypes.py.
"""
