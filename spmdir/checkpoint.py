"""Save and load what sharded models hold, and give values to what was made on the meta device.

`checkpoint.pyi` lists the names.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
