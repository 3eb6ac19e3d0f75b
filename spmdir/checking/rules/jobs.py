"""What the processes that run ops are told; free of torch, which only they load."""

from __future__ import annotations

import attrs


@attrs.frozen
class Setup:
    """What a worker works with: a Python file with `samples()`, if there is one, and plug-ins."""

    samples: str | None = None
    plugins: tuple[str, ...] = ()


@attrs.frozen
class Options:
    """How an op is checked: on how many ranks, and whether missing strategies are looked for.

    Attributes:
        placements: the texts of plug-ins; if there are any, the strategies that these add are checked and no others.
    """

    counts: tuple[int, ...] = (2, 3, 4)
    missing: bool = True
    placements: tuple[str, ...] = ()
