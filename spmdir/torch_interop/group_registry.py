"""Process groups by their names, and what the default group is made with, in torch 2.11 to 2.13."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d


def resolve_group(name: Any) -> Any:
    """Return the process group of that name."""
    return c10d._resolve_process_group(name)


def group_ranks(name: str) -> list[int] | None:
    """Return the ranks of a process group of this process, ascending; None if it has no group of this name."""
    try:
        return sorted(distributed_c10d.get_process_group_ranks(resolve_group(name)))
    except (RuntimeError, ValueError, KeyError):
        return None


def boxed_group(group: Any) -> tuple[str, int]:
    """Return (name, number of ranks) of the process group of an argument of an op of `c10d`."""
    unboxed = c10d.ProcessGroup.unbox(group)
    return unboxed.group_name, unboxed.size()


def boxed_reduction(reduction: Any) -> str:
    """Return the name of the reduction of an argument of an op of `c10d`, such as "sum"."""
    return distributed_c10d.ReduceOp.RedOpType(reduction.op()).name.lower()


def register_group(name: Any, group: Any) -> None:
    """Register a process group by a name in this process. It replaces an earlier group of this name."""
    with suppress(RuntimeError, ValueError):
        c10d._unregister_process_group(name)
    c10d._register_process_group(name, group)


def set_timeout(group: Any, seconds: float) -> None:
    """Set the timeout of the collectives of a group."""
    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def default_store() -> Any:
    """Return the store of the default process group."""
    return distributed_c10d._get_default_store()


def default_timeout() -> float:
    """Return the timeout of the default process group in seconds."""
    group = distributed_c10d._get_default_group()
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            return options._timeout.total_seconds()
    return default_store().timeout.total_seconds()


def flat_mesh(device_mesh: Any) -> Any:
    """Return the mesh of one axis that has the ranks of a torch DeviceMesh; made once, with its process group."""
    return device_mesh._flatten()
