"""Find the parameters of a mixture of experts, which have one expert for each position of dimension 0."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spmdir.core.errors import ShardingError
from spmdir.plans.module_names import find_names, first_names, modules_of, parameters_of

BY_EXPERT = "grouped_gemm"
"""The word of Hugging Face's `ep_plan` for parameters that are sharded by expert."""

EXPERTS = "experts"
"""The name of modules whose direct parameters have one expert for each position of dimension 0."""


def expert_parameters(model: nn.Module) -> list[str]:
    """Return the names of the parameters of experts, in the order of the model.

    They are those that the model's `ep_plan` shards by expert, as in Hugging Face. By default, they are the direct
    parameters of modules named `experts`, such as `layers.0.moe.experts.w1` with the shape [experts, …, …].

    Raises:
        ShardingError: there are none.
    """
    parameters, first_name_of = parameters_of(model), first_names(model)
    ep_plan = getattr(model, "ep_plan", None)
    if isinstance(ep_plan, Mapping) and BY_EXPERT in ep_plan.values():
        keys = [key for key, word in ep_plan.items() if word == BY_EXPERT]
        base = getattr(model, "base_model_prefix", "")
        names = {name for key in keys for name in find_names(key, parameters, base)}
    else:
        names = {
            f"{module_name}.{name}"
            for module_name, module in modules_of(model).items()
            if module_name.rpartition(".")[2] == EXPERTS
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.dim() > 1
        }
    if not names:
        raise ShardingError(
            f"ep finds no experts in {type(model).__name__}; expected an ep_plan, or parameters of shape [experts, …] "
            'in modules named `experts`: give their shardings, as in {"*.moe.w1": "ep: S(0)"}'
        )
    return list(dict.fromkeys(first_name_of[name] for name in parameters if name in names))
