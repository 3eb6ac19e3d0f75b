"""The command-line tools. Ctrl-C during the import of a tool prints one line, not a traceback.

May import: core, pipelined, reshard, dialects, plugins, transforms, pipeline, passes, torch_interop, lowering,
simulator, importer, read_back, plans, report, sweep, explanation, pictures, language_server, checking, shardy,
and the names of spmdir.
Start with argument_parser.py, command.py, spmd.py and spmd_opt.py.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def _exit_on_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Exit with one line for Ctrl-C; print any other exception as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    sys.__excepthook__(kind, error, trace)


SCRIPTS = ("spmd", "spmd-lsp", "spmd-opt", "spmd-reduce", "spmd-run", "spmd-translate")

# Only in the process of a tool: one of the scripts, or `python -m`, where argv does not contain the module yet.
if sys.argv and (sys.argv[0] == "-m" or os.path.basename(sys.argv[0]) in SCRIPTS):
    sys.excepthook = _exit_on_interrupt
