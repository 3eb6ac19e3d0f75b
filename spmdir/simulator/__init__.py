"""Every rank of a mesh in one process: global tensors distributed, graphs run in lock step, results collected.

May import: everything below, to lowering.
Start with simulate.py.
"""
