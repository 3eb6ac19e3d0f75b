"""Localized IR → one torch.fx graph a rank, whose collectives are torch's functional ones.

May import: core, reshard, dialects, passes, torch_interop.
Start with emit.py.
"""
