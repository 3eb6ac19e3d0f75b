"""Write placements, topologies and collectives: the base classes, and the types that they are declared with.

`placement.pyi` lists the names.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
