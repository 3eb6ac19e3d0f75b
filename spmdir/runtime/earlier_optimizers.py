"""Warn about optimizers that were made before a module was sharded. They would update only the old parameters."""

from __future__ import annotations

import gc

from torch import nn
from torch.optim import Optimizer

from spmdir.core.errors import warn


def warn_about_earlier_optimizers(model: nn.Module) -> None:
    """Warn if an optimizer of this process holds parameters of `model`, which is about to be sharded.

    The sharded module has new parameters, which `optimizer.step()` would not update. The search through the objects of
    the process takes 0.1 s for a million of them.
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    # `isinstance` reads `__class__`, which runs arbitrary code of proxy objects. `type` does not.
    optimizers = [candidate for candidate in gc.get_objects() if issubclass(type(candidate), Optimizer)]
    for optimizer in optimizers:
        groups = getattr(optimizer, "param_groups", ())
        if any(id(parameter) in parameters for group in groups for parameter in group["params"]):
            warn(
                f"the optimizer {type(optimizer).__name__} was made from the parameters of the model before it was "
                "sharded, and does not update the sharded module: make it from the parameters of the module that "
                "shard_module returns"
            )
