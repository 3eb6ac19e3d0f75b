"""What the packages above share of torch: op schemas, element types and values, memory layouts.

May import: core; torch.
Start with schemas.py and dtypes.py.
"""
