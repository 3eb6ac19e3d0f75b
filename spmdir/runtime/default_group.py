"""Checks and exchanges between all ranks of the default process group; without a group, of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from spmdir.core.progress import shown_on_terminal
from spmdir.runtime.agreement import RankGroup

_JOINED: WeakKeyDictionary[Any, RankGroup] = WeakKeyDictionary()
"""Process group → its RankGroup. It is joined once, because a new RankGroup would leave entries in the store."""


def own_rank() -> int:
    """Return the rank of this process; 0 without a group."""
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def shown_by_first() -> Iterator[None]:
    """Show progress on the terminal of the first rank, if it has one."""
    with shown_on_terminal(own_rank() == 0):
        yield


@contextmanager
def check_agreement(operation: str) -> Iterator[dict[str, Any]]:
    """Run the body on each rank, and raise on all ranks if one of them raises; see `RankGroup.check_agreement`.

    Without a process group, only run the body.

    Raises:
        SpmdirError: on all ranks, if one of them raised, does not arrive, or differs in a field of the status.
    """
    if not dist.is_initialized():
        yield {}
        return
    world = dist.group.WORLD
    if world not in _JOINED:
        _JOINED[world] = RankGroup.join(range(dist.get_world_size()))
    with _JOINED[world].check_agreement(operation) as status:
        yield status


def broadcast_from_first(value: Any) -> Any:
    """Return the value of the first rank on all ranks; `value` without a group. The value must support pickling."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def gather_from_all(value: Any) -> list[Any]:
    """Return the values of all ranks, in rank order; [value] without a group. The values must support pickling."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
