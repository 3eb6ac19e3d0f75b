"""Named sharding plans of the models in `zoo`, for a mesh with the axes dp and tp; one plan serves both the
exported forward and the training step, since a key that fits a parameter fits its moments too.
"""

from __future__ import annotations

BATCH = {"arg*": "dp: S(0)"}
"""The batch dimension of every model input, as both tracers name them."""

COLUMN: dict[str, tuple[str, ...]] = {
    "mlp": ("*.up",),
    "llama": ("*.q_proj", "*.k_proj", "*.v_proj", "*.gate_proj", "*.up_proj"),
    "gpt2": (),
    "bert": ("*.query", "*.key", "*.value", "*.intermediate.dense"),
    "vit": ("*.q_proj", "*.k_proj", "*.v_proj", "*.fc1"),
    "t5": ("*Attention.q", "*Attention.k", "*Attention.v", "*.wi"),
}
"""Modules whose output features are sharded."""

ROW: dict[str, tuple[str, ...]] = {
    "mlp": ("*.down",),
    "llama": ("*.o_proj", "*.down_proj"),
    "gpt2": (),
    "bert": ("*.layer.?.attention.output.dense", "*.layer.?.output.dense"),
    "vit": ("*.o_proj", "*.fc2"),
    "t5": ("*Attention.o", "*.wo"),
}
"""Modules whose input features are sharded, and whose output is a partial sum."""

VOCABULARY: dict[str, tuple[str, ...]] = {
    "mlp": (),
    "llama": ("*.embed_tokens", "*.lm_head"),
    "gpt2": ("*.wte",),
    "bert": ("*.word_embeddings",),
    "vit": (),
    "t5": ("*.shared",),
}
"""Modules whose vocabulary is sharded."""

RESIDUAL = "dp: S(0), tp: S(1)"
"""The residual stream between blocks with its sequence sharded, for `zoo.forward_program(residual=…)`."""

Plan = dict[str, str]


def _tensor_parallel(name: str) -> Plan:
    if name == "gpt2":  # its Conv1D keeps weights as (in, out)
        column = {"*.c_attn.weight": "tp: S(1)", "*.c_fc.weight": "tp: S(1)", "*.c_fc.bias": "tp: S(0)"}
        return {**column, "*.c_proj.weight": "tp: S(0)"}
    column = {f"{module}.{part}": "tp: S(0)" for module in COLUMN[name] for part in _parts(name)}
    return {**column, **{f"{module}.weight": "tp: S(1)" for module in ROW[name]}}


def _parts(name: str) -> tuple[str, ...]:
    return ("weight",) if name in ("llama", "t5") else ("weight", "bias")


def _data_parallel(name: str) -> Plan:
    return {"*weight": "dp: S(0)"} if name in ("llama", "t5") else {"*weight": "dp: S(0)", "*bias": "dp: S(0)"}


def _both(name: str) -> Plan:
    def sharded(key: str, value: str) -> str:
        if key.endswith("bias"):
            return f"{value}, dp: S(0)"
        return f"{value}, dp: S({1 - int(value[-2])})"

    return {**_data_parallel(name), **{key: sharded(key, value) for key, value in _tensor_parallel(name).items()}}


def _vocabulary(name: str) -> Plan:
    return {**_tensor_parallel(name), **{f"{module}.weight": "tp: S(0)" for module in VOCABULARY[name]}}


KINDS = {
    "none": lambda name: {},
    "data_parallel": lambda name: BATCH,
    "tensor_parallel": lambda name: {**BATCH, **_tensor_parallel(name)},
    "fsdp": lambda name: {**BATCH, **_data_parallel(name)},
    "fsdp_tensor_parallel": lambda name: {**BATCH, **_both(name)},
    "vocab_parallel": lambda name: {**BATCH, **_vocabulary(name)},
}
"""Plan name → (model name → plan)."""


def plan(name: str, kind: str) -> Plan:
    """Return the shardings of a model under a named plan, as `import_fx` takes them."""
    return KINDS[kind](name)
