"""Partition PyTorch graphs over a device mesh: an SPMD IR with explicit shardings, and the passes over it.

The names of this package capture a program, partition it and run it on real ranks. Submodules have the other names, by
task: `spmdir.placement`, `spmdir.rules` and `spmdir.plugins` extend spmdir, and `spmdir.report` explains the cost and
the shardings of a program. The others are `spmdir.checkpoint`, `spmdir.testing` and `spmdir.errors`.

`__init__.pyi` lists the names. Each name is imported on first use, so `import spmdir` imports neither torch nor xDSL.
"""

from __future__ import annotations

import sys

from spmdir.core.lazy_names import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_names(__name__, __file__)

if "IPython" in sys.modules:
    from spmdir.pictures.notebook import show_modules

    show_modules()
