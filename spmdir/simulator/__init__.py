"""Every rank of a mesh in one process: global tensors distributed, graphs run in lock step, results collected.

May import: core, reshard, dialects, pipeline, torch_interop, lowering.
Start with simulate.py.
"""
