"""torch.fx graphs and exported programs → IR, and what a model says about its own shardings."""

from __future__ import annotations

from spmdir.importer.constrain import constrain
from spmdir.importer.importer import import_fx
from spmdir.importer.training import training_step

__all__ = ["constrain", "import_fx", "training_step"]
