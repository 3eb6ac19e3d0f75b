"""Cut a training step of one micro-batch into the functions of a pipelined step.

May import: the same packages as `spmdir.transforms`.
Start with step_parts.py, then cut.py.
"""
