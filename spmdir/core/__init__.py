"""The plain values of the compiler: meshes, shardings, placements, intervals, symbolic sizes, calls, errors.

May import: nothing of spmdir outside core; no torch, no xDSL.
Start with placement/base.py and placement/sharding.py.
"""
