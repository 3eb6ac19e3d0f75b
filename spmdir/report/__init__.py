"""What a program costs, told to people: communication by kind and axis, memory by class, how far results may be off.

May import: core, rules, reshard, search, schedule, dialects, analysis, transforms, pipeline.
Start with communication.py.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
