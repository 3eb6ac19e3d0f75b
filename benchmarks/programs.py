"""The programs that the benchmarks partition: a Llama-style decoder with its loss and gradients, traced by make_fx."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from spmdir.importer.constrain import constrain


@attrs.frozen
class Config:
    """Sizes of a decoder.

    Attributes:
        attention: "einsum" (grouped queries by einsum, masked softmax), "matmul" or "sdpa" (the fused kernel).
    """

    layers: int = 2
    dim: int = 256
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 768
    seq: int = 128
    batch: int = 8
    vocab: int = 1024
    attention: str = "einsum"


LLAMA_7B_WIDE = Config(dim=4096, heads=32, kv_heads=8, ffn=14336, seq=2048, batch=8, vocab=128256, attention="sdpa")
"""The width of the models on which DTensor's tracing time was measured; layers to be set."""


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name → shape; linear weights are stored input-major, so that `x @ w` needs no transpose."""
    head = config.dim // config.heads
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab, config.dim)}
    for layer in range(config.layers):
        shapes |= {
            f"l{layer}.norm1": (config.dim,),
            f"l{layer}.wq": (config.dim, config.heads * head),
            f"l{layer}.wk": (config.dim, config.kv_heads * head),
            f"l{layer}.wv": (config.dim, config.kv_heads * head),
            f"l{layer}.wo": (config.heads * head, config.dim),
            f"l{layer}.norm2": (config.dim,),
            f"l{layer}.w1": (config.dim, config.ffn),
            f"l{layer}.w3": (config.dim, config.ffn),
            f"l{layer}.w2": (config.ffn, config.dim),
        }
    return shapes | {"norm": (config.dim,), "lm_head": (config.dim, config.vocab)}


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the last dimension, whose halves are the real and imaginary parts."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def rotary(config: Config, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, each (seq, head size)."""
    head = config.dim // config.heads
    frequency = 10000.0 ** (-torch.arange(0, head, 2, device=device, dtype=torch.float32) / head)
    angles = torch.arange(config.seq, device=device, dtype=torch.float32)[:, None] * frequency
    angles = torch.cat([angles, angles], dim=-1).to(dtype)
    return angles.cos(), angles.sin()


def _attention(config: Config, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Causal grouped-query attention on projections of shape (batch, seq, width)."""
    batch, seq, _ = q.shape
    head, group = config.dim // config.heads, config.heads // config.kv_heads
    if config.attention == "einsum":
        q = rotate(q.view(batch, seq, config.kv_heads, group, head), cos[:, None, None], sin[:, None, None])
        k = rotate(k.view(batch, seq, config.kv_heads, head), cos[:, None], sin[:, None])
        v = v.view(batch, seq, config.kv_heads, head)
        scores = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * head**-0.5
        positions = torch.arange(seq, device=q.device)
        scores = torch.where(positions[:, None] >= positions[None, :], scores, torch.finfo(q.dtype).min)
        out = torch.einsum("bhgqk,bkhd->bqhgd", torch.softmax(scores, dim=-1), v)
        return out.reshape(batch, seq, config.heads * head)
    q = rotate(q.view(batch, seq, config.heads, head), cos[:, None], sin[:, None]).transpose(1, 2)
    k = rotate(k.view(batch, seq, config.kv_heads, head), cos[:, None], sin[:, None]).transpose(1, 2)
    k = k.repeat_interleave(group, dim=1)
    v = v.view(batch, seq, config.kv_heads, head).transpose(1, 2).repeat_interleave(group, dim=1)
    if config.attention == "sdpa":
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        positions = torch.arange(seq, device=q.device)
        scores = q @ k.transpose(-1, -2) * head**-0.5
        scores = torch.where(positions[:, None] >= positions[None, :], scores, torch.finfo(q.dtype).min)
        out = torch.softmax(scores, dim=-1) @ v
    return out.transpose(1, 2).reshape(batch, seq, config.heads * head)


def loss_and_gradients(config: Config, residual: str | None) -> Callable[..., dict[str, Tensor]]:
    """`step(parameters, tokens, labels)` → {"loss": …, name: gradient …}.

    Args:
        residual: the sharding the residual stream is constrained to after the embedding, attention and MLP.
    """

    def keep(x: Tensor) -> Tensor:
        return x if residual is None else constrain(x, residual)

    def step(parameters: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        cos, sin = rotary(config, tokens.device, leaves["embed"].dtype)
        x = keep(F.embedding(tokens, leaves["embed"]))
        for layer in range(config.layers):
            w = {n.split(".")[1]: p for n, p in leaves.items() if n.startswith(f"l{layer}.")}
            h = rms_norm(x, w["norm1"])
            x = keep(x + _attention(config, h @ w["wq"], h @ w["wk"], h @ w["wv"], cos, sin) @ w["wo"])
            h = rms_norm(x, w["norm2"])
            x = keep(x + (F.silu(h @ w["w1"]) * (h @ w["w3"])) @ w["w2"])
        logits = rms_norm(x, leaves["norm"]) @ leaves["lm_head"]
        picked = logits.gather(-1, labels[..., None])[..., 0]
        loss = (torch.logsumexp(logits, dim=-1) - picked).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {"loss": loss.detach()} | dict(zip(leaves, gradients, strict=True))

    return step


_COLUMN = ("wq", "wk", "wv", "w1", "w3", "lm_head")
_ROW = ("wo", "w2", "embed")


def shardings(config: Config, plan: str) -> tuple[dict[str, str], str | None]:
    """(argument → sharding, residual constraint) of a plan on the axes data and model.

    The plans are tp, tp_fsdp, fsdp, sp and nocons: Megatron tensor parallelism, the same with parameters also
    divided over data, parameters and batch divided over both axes, sequence-divided residuals, and no constraints.
    """
    found = {}
    for name in parameter_shapes(config):
        kind = name.split(".")[-1]
        if kind in _COLUMN:
            model, free = 1, 0
        elif kind in _ROW:
            model, free = 0, 1
        else:
            found[name] = ""
            continue
        found[name] = {
            "tp": f"model: S({model})",
            "fsdp": f"data: S({free}), model: S({free})",
        }.get(plan, f"data: S({free}), model: S({model})")
    batch = "data: S(0), model: S(0)" if plan == "fsdp" else "data: S(0)"
    residual = {"sp": "data: S(0), model: S(1)", "nocons": None}.get(plan, batch)
    return found | {"tokens": batch, "labels": batch}, residual


def load_tracer() -> None:
    """Trace next to nothing, so that what is timed later does not include the loading of torch's modules."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        make_fx(torch.sin)(torch.ones(1))


def trace(config: Config, residual: str | None, dtype: torch.dtype = torch.float32, fake: bool = True):
    """The make_fx graph of one step, its flat argument names, and its flat output names.

    Args:
        fake: trace on fake tensors, so that no memory is needed.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    shapes = parameter_shapes(config)

    def build():
        parameters = {name: torch.randn(shape, dtype=dtype) * 0.02 for name, shape in shapes.items()}
        tokens = torch.randint(0, config.vocab, (config.batch, config.seq))
        return parameters, tokens, tokens.clone()

    step = loss_and_gradients(config, residual)
    if fake:
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs = build()
            graph = make_fx(step)(*inputs)
    else:
        inputs = build()
        graph = make_fx(step)(*inputs)
    return graph, inputs, [*shapes, "tokens", "labels"], ["loss", *shapes]
