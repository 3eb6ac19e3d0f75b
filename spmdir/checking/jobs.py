"""What the processes that run ops are told; free of torch, which only they load."""

from __future__ import annotations

import attrs


@attrs.frozen
class Setup:
    """What a worker works with: a .rules file and a Python file with `samples()`, if there are any."""

    rules: str | None = None
    samples: str | None = None


@attrs.frozen
class Options:
    """How an op is checked: on how many ranks, and whether missing strategies are looked for."""

    counts: tuple[int, ...] = (2, 3, 4)
    missing: bool = True
