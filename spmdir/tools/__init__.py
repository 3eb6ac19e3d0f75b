"""The command-line tools. A Ctrl-C while one is still being imported ends it in one line, as later ones do.

May import: core, reshard, dialects, plugins, transforms, pipeline, passes, torch_interop, lowering, simulator,
importer, plans, report, explanation, pictures, language_server, checking, and the names of spmdir.
Start with argument_parser.py, command.py, spmd.py and spmd_opt.py.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    sys.__excepthook__(kind, error, trace)


SCRIPTS = ("spmd", "spmd-lsp", "spmd-opt", "spmd-reduce", "spmd-run", "spmd-translate")

# Only in the process of a tool: a script of ours, or `python -m`, which has not named its module yet.
if sys.argv and (sys.argv[0] == "-m" or os.path.basename(sys.argv[0]) in SCRIPTS):
    sys.excepthook = _ended
