"""Orders of a pipeline-parallel step: which rank runs which stage on which micro-batch, and when messages are sent.

May import: core.
Start with actions.py, then list_order.py.
"""
