"""Localized IR → one torch.fx graph a rank, whose collectives are torch's functional ones.

May import: core, reshard, dialects, pipeline, torch_interop.
Start with emit.py.
"""
