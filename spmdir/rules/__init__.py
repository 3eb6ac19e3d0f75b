"""Rules that describe how ops propagate shardings, one line of text for each op, and the engine that reads them.

May import: core. Inside: language ← shapes ← local ← strategies ← op_rule ← instantiate ← rule_set.
Start with aten/contraction.rules, then shapes/instance.py and strategies/per_axis.py; docs/rules.md is the reference.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
