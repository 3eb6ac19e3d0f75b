"""Front doors to real process groups: parallelize, tensor_parallel, training_step, and agreement between ranks.

May import: core, reshard, dialects, passes, torch_interop, lowering, simulator, importer, plans.
Start with parallelize.py.
"""
