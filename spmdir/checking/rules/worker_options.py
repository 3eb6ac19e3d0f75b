"""Options of worker processes. This module does not import torch, which only workers need."""

from __future__ import annotations

import attrs


@attrs.frozen
class Setup:
    """The setup of a worker: a Python file with `samples()`, or None, and plug-ins."""

    samples: str | None = None
    plugins: tuple[str, ...] = ()


@attrs.frozen
class Options:
    """How an op is checked.

    Attributes:
        counts: the sizes of the mesh axis.
        missing: whether to search for missing strategies.
        placements: texts of plug-in placements. If not empty, only the strategies that these add are checked.
    """

    counts: tuple[int, ...] = (2, 3, 4)
    missing: bool = True
    placements: tuple[str, ...] = ()
