"""The default of tensor parallelism: which layers are sharded by output features, and which by input features."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from spmdir.core.errors import ShardingError
from spmdir.plans.module_names import find_modules, find_names, modules_of, parameters_of

COLWISE = {
    *("q_proj", "k_proj", "v_proj", "query", "key", "value", "wq", "wk", "wv", "q", "k", "v"),
    *("gate_proj", "up_proj", "gate", "up", "w1", "w3", "fc1", "wi", "wi_0", "wi_1", "c_fc", "lin1", "linear1"),
}
"""Names of linear layers whose output features are heads, or the hidden features of an MLP."""

ROWWISE = {
    *("o_proj", "out_proj", "wo", "o", "c_proj"),
    *("down_proj", "down", "w2", "fc2", "lin2", "linear2"),
}
"""Names of linear layers whose input features are these."""


ADAPTED = ".base_layer"
"""The suffix of the names of layers to which peft has added adapters."""


def is_linear(module: nn.Module) -> bool:
    """Return whether `module` is a linear layer, such as nn.Linear or Conv1D of transformers."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def tensor_parallel_layers(model: nn.Module) -> Mapping[str, object]:
    """Return module → style, from the model's `tp_plan`, as in Hugging Face, or by default from the names of layers.

    Keys of a `tp_plan` are names or globs. Its styles are words or objects of torch, which are not checked here.

    Raises:
        ShardingError: there is no `tp_plan`, and no pair of known names.
    """
    tp_plan, modules = getattr(model, "tp_plan", None), modules_of(model)
    if isinstance(tp_plan, Mapping) and tp_plan:
        tp_plan = _without_missing_layers(tp_plan, model)
        return _with_adapters(tp_plan, modules) if any(name.endswith(ADAPTED) for name in modules) else tp_plan
    styles: dict[str, object] = {}
    for name, module in modules.items():
        layer_name = name.removesuffix(ADAPTED).rpartition(".")[2]
        if is_linear(module) and layer_name in COLWISE:
            styles[name] = "colwise"
        elif is_linear(module) and layer_name in ROWWISE:
            styles[name] = "rowwise"
    if not {"colwise", "rowwise"} <= set(styles.values()):
        raise ShardingError(
            f"tp finds no layers to shard in {type(model).__name__}; expected a tp_plan, or a pair of linear layers of "
            'common names, such as up_proj and down_proj: give their names, as in {"*.first": "colwise", '
            '"*.second": "rowwise"}'
        )
    return styles


def _without_missing_layers(plan: Mapping[str, object], model: nn.Module) -> dict[str, object]:
    """Return a `tp_plan` without the entries that its family of models has, but this model does not.

    For example, the family Qwen3-MoE has dense layers, but most of its models have none.
    """
    of_family = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    names = [f".{name}" for name in (*modules_of(model), *parameters_of(model))]
    styles: dict[str, object] = {}
    for key, style in plan.items():
        is_of_family = any(key == name or key.endswith(f".{name}") for name in of_family)
        if not is_of_family or find_names(f"*.{key}", names):
            styles[key] = style
    return styles


def _with_adapters(plan: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    """Return the plan of a model for its peft model, which wraps the model and its layers.

    Names have a prefix in the peft model. A wrapped layer is the submodule `base_layer` of its wrapper.
    """
    styles: dict[str, object] = {}
    for key, style in plan.items():
        for name in find_modules(f"*.{key}", names):
            wrapped_name = name + ADAPTED
            styles[wrapped_name if wrapped_name in names else name] = style
    return styles
