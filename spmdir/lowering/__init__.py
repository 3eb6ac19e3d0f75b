"""Lower localized IR to one torch.fx graph per rank, with torch's functional collectives.

May import: core, reshard, dialects, pipeline, torch_interop.
Start with emit.py.
"""
