"""The errors and the warning of spmdir. Each error is a SpmdirError, with a message and a location.

`errors.pyi` lists the names.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
