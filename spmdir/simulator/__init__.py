"""Simulate all ranks of a mesh in one process: distribute tensors, run graphs in lock step, and collect results.

May import: core, pipelined, reshard, dialects, pipeline, torch_interop, lowering.
Start with simulate.py.
"""
