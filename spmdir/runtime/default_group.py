"""What all ranks of the default process group do together; one process without a group does it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from spmdir.core.progress import shown_on_terminal
from spmdir.runtime.agreement import RankGroup

_JOINED: WeakKeyDictionary[Any, RankGroup] = WeakKeyDictionary()
"""Process group → the group of its ranks, joined once, so that what ranks say in a round is forgotten in the next."""


def own_rank() -> int:
    """Return the rank of this process; 0 without a group."""
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def shown_by_first() -> Iterator[None]:
    """Show how far the first rank is on its terminal, if it has one."""
    with shown_on_terminal(own_rank() == 0):
        yield


@contextmanager
def checked(operation: str) -> Iterator[dict[str, Any]]:
    """Run what each rank does by itself, where all ranks raise what one of them does; see `RankGroup.checked`.

    Raises:
        SpmdirError: on all ranks, if one of them raised, does not come, or differs in a field that is compared.
    """
    if not dist.is_initialized():
        yield {}
        return
    world = dist.group.WORLD
    if world not in _JOINED:
        _JOINED[world] = RankGroup.join(range(dist.get_world_size()))
    with _JOINED[world].checked(operation) as status:
        yield status


def broadcast_from_first(value: Any) -> Any:
    """Return the value of the first rank, which is pickled."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def gather_from_all(value: Any) -> list[Any]:
    """Return the values of all ranks, which are pickled."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
