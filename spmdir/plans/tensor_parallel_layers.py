"""Which layers of a model are sharded by output and which by input features, where the user does not say."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from spmdir.core.errors import ShardingError
from spmdir.plans.module_names import matching, modules_of

COLWISE = {
    *("q_proj", "k_proj", "v_proj", "query", "key", "value", "wq", "wk", "wv", "q", "k", "v"),
    *("gate_proj", "up_proj", "gate", "up", "w1", "w3", "fc1", "wi", "wi_0", "wi_1", "c_fc", "lin1", "linear1"),
}
"""What linear layers are called whose output features belong to heads or to the inner width of an MLP."""

ROWWISE = {
    *("o_proj", "out_proj", "wo", "o", "c_proj"),
    *("down_proj", "down", "w2", "fc2", "lin2", "linear2"),
}
"""What linear layers are called that take these."""


ADAPTED = ".base_layer"
"""How names of layers end that peft has put adapters beside."""


def is_linear(module: nn.Module) -> bool:
    """Return whether `module` is a linear layer; Conv1D is one of transformers."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def tensor_parallel_layers(model: nn.Module) -> Mapping[str, object]:
    """Return module → style: the model's own `tp_plan`, as models of Hugging Face have, else by the names of layers.

    Raises:
        ShardingError: the model has neither.
    """
    own, modules = getattr(model, "tp_plan", None), modules_of(model)
    if isinstance(own, Mapping) and own:
        return _with_adapters(own, modules) if any(name.endswith(ADAPTED) for name in modules) else own
    found: dict[str, object] = {}
    for name, module in modules.items():
        last = name.removesuffix(ADAPTED).rpartition(".")[2]
        if is_linear(module):
            found |= dict.fromkeys([name] if last in COLWISE else [], "colwise")
            found |= dict.fromkeys([name] if last in ROWWISE else [], "rowwise")
    if not {"colwise", "rowwise"} <= set(found.values()):
        raise ShardingError(
            f"tp does not know the layers of {type(model).__name__}: it has no tp_plan, and no pair of linear layers "
            'called as those of known models, such as up_proj and down_proj; name them: {"*.first": "colwise", '
            '"*.second": "rowwise"}'
        )
    return found


def _with_adapters(plan: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    """Return the plan of a model for what peft makes of it: a model around it, with layers beside adapters."""
    found: dict[str, object] = {}
    for key, style in plan.items():
        for name in matching(f"*.{key}", names):
            found[name + ADAPTED if name + ADAPTED in names else name] = style
    return found
