"""Partition PyTorch graphs over a device mesh: an SPMD IR with explicit shardings, and the passes over it.

These are the names of a program's way from capture to real ranks. Others are in submodules by task: `spmdir.placement`,
`spmdir.rules` and `spmdir.plugins` to extend it, `spmdir.report` to read what a program costs and why it is decided as
it is, `spmdir.checkpoint`, `spmdir.testing` and `spmdir.errors`. `__init__.pyi` lists the names; each is imported when
it is first used, so that `import spmdir` costs neither torch nor xDSL.
"""

from __future__ import annotations

import sys

from spmdir.core.lazy_names import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_names(__name__, __file__)

if "IPython" in sys.modules:
    from spmdir.pictures.notebook import show_modules

    show_modules()
