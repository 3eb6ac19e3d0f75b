"""From the localized IR to torch.fx graphs, and their simulation."""

from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.simulate import run_single, simulate

__all__ = ["lower_to_fx", "run_single", "simulate"]
