"""Training of mixtures of experts of transformers on simulated ranks, beside their eager loop on one device."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.runtime.capture import capture_step

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "use_cache": False,
}
MOE = {"moe_intermediate_size": 8}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
GROUPS = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0}
MODELS = {
    "mixtral": (transformers.MixtralForCausalLM, transformers.MixtralConfig, {"num_local_experts": 4}),
    "qwen3": (transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig, {**MOE, "num_experts": 4, "head_dim": 8}),
    "deepseek": (transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config, {**MOE, **LATENT, **GROUPS}),
}
WITH_BIASES = {
    "gpt-oss": (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig,
        {"num_local_experts": 4, "head_dim": 8, "layer_types": ["full_attention"], "attn_implementation": "eager"},
    )
}
"""Models whose experts have biases. Their rows are not dispatched."""

BY_EXPERT = {"*.experts.*_proj": "ep: S(0)", "arg1_1": "ep: S(1)"}
OPS = {"route": 1, "sort_rows": 3, "unsort_rows": 3, "regroup": 4, "grouped_mm": 4, "grouped_outer": 2}
"""Op of `experts` → how many a layer has, forward and backward."""


def build(name: str, experts: str = "grouped_mm", dtype: torch.dtype = torch.float64) -> nn.Module:
    make_model, make_config, sizes = (MODELS | WITH_BIASES)[name]
    torch.manual_seed(0)
    model = make_model(make_config(**SIZES, **sizes, experts_implementation=experts)).to(dtype)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" not in parameter_name:
                parameter.normal_(std=0.2)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("correction_bias"):
                buffer.normal_()
    return model.train()


def token_ids(batch: int, length: int) -> Tensor:
    return torch.randint(0, 32, (batch, length), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class RoutingInF64(TorchDispatchMode):
    """Converts to f64 where a model converts to f32, as routers do. So only sums in another order cause errors."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten._to_copy.default and args[0].is_floating_point():
            kwargs |= {"dtype": torch.float64} if kwargs.get("dtype") == torch.float32 else {}
        return func(*args, **kwargs)


def exact_loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    with RoutingInF64():
        return loss_of(model, ids)


def auxiliary_loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    outputs = model(ids, output_router_logits=True)
    return cross_entropy(outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) + 0.1 * outputs.aux_loss


def training(model: nn.Module, loss=loss_of, **options):
    return spmdir.training_step(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), **options)


def count_ops(module: ModuleOp) -> dict[str, int]:
    names = re.findall(r"= experts\.(\w+)", spmdir.print_ir(module))
    return {name: names.count(name) for name in OPS}


def with_dispatched_rows(module: ModuleOp, sharding: str) -> ModuleOp:
    """Return a module whose sorted rows have `sharding`, where they are regrouped."""
    text = spmdir.print_ir(module)
    sorted_rows = set(re.findall(r"(%\S+) = experts\.sort_rows", text))
    lines = []
    for line in text.splitlines():
        match = re.search(r"= experts\.regroup\((%\S+),", line)
        lines.append(f"{line} <{sharding}>" if match and match[1] in sorted_rows else line)
    return spmdir.parse("\n".join(lines))


def largest_error(module: ModuleOp, name: str, ids: Tensor, tweak, loss, options) -> float:
    """Return the largest error of the loss and of each gradient, relative to the largest element of the gradient."""
    _, state = training(tweak(build(name)), loss, **options)
    found = spmdir.simulate(module, [*pytree.tree_leaves(state), ids])
    step, state = training(tweak(build(name, "eager")), loss, **options)
    expected_loss, new_state = step(state, ids)
    errors = [((found[0] - expected_loss) / expected_loss).abs().item()]
    old, new = pytree.tree_leaves(state), pytree.tree_leaves(new_state)
    for found_value, old_value, new_value in zip(found[1:], old, new, strict=True):
        if isinstance(old_value, Tensor) and old_value.is_floating_point():
            gradient = new_value - old_value
            error = (found_value - old_value - gradient).abs().max() / gradient.abs().max().clamp(min=1e-9)
            errors.append(error.item())
    return max(errors)


def unchanged(model: nn.Module) -> nn.Module:
    return model


def checkpointed(model: nn.Module) -> nn.Module:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore
    return model


def with_ties(model: nn.Module) -> nn.Module:
    """Let all tokens choose the same experts."""
    for name, parameter in model.named_parameters():
        if name.endswith("gate.weight"):
            nn.init.zeros_(parameter)
    return model


CASES = {
    "mixtral": ("mixtral", 5, unchanged, auxiliary_loss_of, {}),
    "ties": ("mixtral", 5, with_ties, loss_of, {}),
    "rank without tokens": ("qwen3", 3, unchanged, loss_of, {}),
    "qwen3 in micro-batches": ("qwen3", 4, unchanged, loss_of, {"accumulate": 2, "clip_grad_norm": 0.5}),
    "checkpointed": ("qwen3", 4, checkpointed, loss_of, {}),
    "deepseek": ("deepseek", 5, unchanged, loss_of, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_dispatched_rows_are_those_of_one_device(case: str):
    name, length, tweak, loss, options = CASES[case]
    ids = token_ids(2, length)
    step, state = training(tweak(build(name)), loss, **options)
    module = spmdir.import_fx(make_fx(step, tracing_mode="fake")(state, ids), spmdir.Mesh({"ep": 4}), BY_EXPERT)
    module = spmdir.run_passes(with_dispatched_rows(module, "ep: Grouped(0)"), "propagate")
    assert largest_error(module, name, ids, tweak, loss, options) < 1e-12


@pytest.mark.parametrize("name", WITH_BIASES)
def test_gradients_of_experts_with_biases_are_those_of_one_device(name: str):
    ids = token_ids(2, 5)
    step, state = training(build(name), exact_loss_of)
    plan = BY_EXPERT | {"*.experts.*_proj_bias": "ep: S(0)"}
    module = spmdir.import_fx(make_fx(step, tracing_mode="fake")(state, ids), spmdir.Mesh({"ep": 2}), plan)
    assert count_ops(module) == OPS
    assert largest_error(spmdir.run_passes(module, "propagate"), name, ids, unchanged, exact_loss_of, {}) < 1e-12


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_a_training_step_has_only_ops_of_experts(name: str, dtype: torch.dtype):
    step, state = training(build(name, dtype=dtype))
    program = capture_step(step, state, (token_ids(2, 4),), torch.device("cpu")).program
    module = spmdir.import_fx(program, spmdir.Mesh({"ep": 2}))
    assert count_ops(module) == OPS
    assert not re.search(r"aten\.(sort|histc|index_put|_grouped_mm|cumsum\(%histc)|fallback", spmdir.print_ir(module))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_with_a_loop_over_experts_is_an_error_that_names_the_option(name: str):
    step, state = training(build(name, "eager"))
    with pytest.raises(spmdir.SpmdirError, match=r'set experts_implementation="grouped_mm" when you load the model'):
        capture_step(step, state, (token_ids(2, 4),), torch.device("cpu"))


class Products(nn.Module):
    """A grouped product with rows behind the last group, whose gradient has stride 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(24.0).reshape(2, 3, 4))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(rows, self.weight, offs=ends)


def test_rows_behind_the_last_group_are_zero_and_gradients_may_have_stride_zero():
    model, ends = Products(), torch.tensor([1, 3], dtype=torch.int32)
    rows = torch.ones(5, 3)
    step, state = training(model, lambda model, rows, ends: model(rows, ends).sum())
    graph = make_fx(step, tracing_mode="fake")(state, rows, ends)
    module = spmdir.import_fx(graph, spmdir.Mesh({"ep": 2}))
    module = spmdir.run_passes(module, "propagate")
    loss, weight, *_ = spmdir.simulate(module, [*pytree.tree_leaves(state), rows, ends])
    assert loss == model.weight[0].sum() + 2 * model.weight[1].sum()
    assert torch.equal(model.weight - weight, torch.tensor([1.0, 2.0])[:, None, None].expand(2, 3, 4))
