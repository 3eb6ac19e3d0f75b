"""Makes the process forget plug-ins: their modules, placements and collectives, and what their texts were read as."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spmdir.core.placement import base
from spmdir.plugins import module_name
from spmdir.reshard import collectives


def forget_plugins(folder: Path) -> None:
    """Forget the plug-ins whose files are in `folder`, as if they had never been loaded."""
    inside = module_name(os.path.realpath(folder)) + "_"
    for name in [name for name in sys.modules if name.startswith(inside)]:
        del sys.modules[name]
    for name in [name for name, (_, module) in collectives._SPECS.items() if module.startswith(inside)]:
        del collectives._SPECS[name]
    for name in [name for name, kind in base._TYPES.items() if kind.__module__.startswith(inside)]:
        del base._TYPES[name]
        for memo in base._MEMOS:
            memo.cache_clear()
