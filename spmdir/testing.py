"""Check placements and rules by running them on simulated ranks.

`testing.pyi` lists the names.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
