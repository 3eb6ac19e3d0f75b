"""From the localized IR to torch.fx graphs, and their simulation."""

from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.groups import connect
from spmdir.lowering.parallel import Parallel
from spmdir.lowering.prepare import parallelize
from spmdir.lowering.simulate import run_single, simulate
from spmdir.lowering.tensor_parallel import tensor_parallel

__all__ = ["Parallel", "connect", "lower_to_fx", "parallelize", "run_single", "simulate", "tensor_parallel"]
