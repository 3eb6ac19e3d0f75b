"""Partition PyTorch graphs over a device mesh: an SPMD IR with explicit shardings, and the passes over it.

The public names are loaded when first used, so that `import spmdir` costs neither torch nor xDSL.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Edge": "spmdir.placement_type",
    "Mesh": "spmdir.mesh",
    "PartialPlacement": "spmdir.placement_type",
    "Placement": "spmdir.placement_type",
    "ShardPlacement": "spmdir.placement_type",
    "Sharding": "spmdir.sharding",
    "SpmdirError": "spmdir.errors",
    "check_placement": "spmdir.laws",
    "check_rules": "spmdir.checking",
    "comm_report": "spmdir.planner",
    "constrain": "spmdir.importer",
    "import_fx": "spmdir.importer",
    "load_rules": "spmdir.rules",
    "lower_to_fx": "spmdir.lowering",
    "parallelize": "spmdir.lowering",
    "parse": "spmdir.dialects.ir",
    "plan_reshard": "spmdir.planner",
    "print_ir": "spmdir.dialects.ir",
    "run_passes": "spmdir.passes",
    "simulate": "spmdir.lowering",
    "strategies": "spmdir.rules",
    "tensor_parallel": "spmdir.lowering",
    "training_step": "spmdir.importer",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spmdir' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
