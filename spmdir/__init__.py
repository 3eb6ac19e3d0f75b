"""Partition PyTorch graphs over a device mesh: an SPMD IR with explicit shardings, and the passes over it.

The public names are loaded when first used, so that `import spmdir` costs neither torch nor xDSL.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Edge": "spmdir.core.placement.base",
    "Mesh": "spmdir.core.mesh",
    "PartialPlacement": "spmdir.core.placement.base",
    "Placement": "spmdir.core.placement.base",
    "ShardPlacement": "spmdir.core.placement.base",
    "Sharding": "spmdir.core.sharding",
    "SpmdirError": "spmdir.core.errors",
    "check_placement": "spmdir.checking.placements",
    "check_rules": "spmdir.checking.rules",
    "comm_report": "spmdir.report.communication",
    "constrain": "spmdir.importer.constrain",
    "import_fx": "spmdir.importer.importer",
    "load_rules": "spmdir.rules",
    "lower_to_fx": "spmdir.lowering.emit",
    "parallelize": "spmdir.runtime.prepare",
    "parse": "spmdir.dialects.ir",
    "plan_reshard": "spmdir.reshard.plan",
    "print_ir": "spmdir.dialects.ir",
    "run_passes": "spmdir.passes.pipeline",
    "simulate": "spmdir.simulator.simulate",
    "strategies": "spmdir.rules.listing",
    "tensor_parallel": "spmdir.runtime.tensor_parallel",
    "training_step": "spmdir.runtime.training",
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
