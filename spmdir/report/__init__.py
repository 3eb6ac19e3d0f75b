"""Reports on a program: communication by kind and axis, memory by class, cost tables, error bounds of results.

May import: core, rules, reshard, search, schedule, dialects, analysis, transforms, pipeline, serving.
Start with communication.py.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
