"""Serve causal language models: capture with caches, one decision for all programs, generation on ranks.

`import spmdir.serving` makes the names available; `__init__.pyi` lists them.

May import: core, dialects, pipeline, torch_interop, importer, runtime.
Start with capture_model.py.
"""

from spmdir.core.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
