"""The same decoder written for DTensor: Megatron tensor parallelism by hand, parameters divided over data as well.

Every parameter is gathered over `data` before it is used, so its gradient is scattered; the blocks gather nothing
over `model` and reduce once each way. It is what an expert writes, and what the compiler is held against.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import attrs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, fx
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, placement_types
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.programs import Config, parameter_shapes, rms_norm, rotary, rotate, shardings

MESH = {"data": 2, "model": 4}
R, BATCH = Replicate(), Shard(0)


@attrs.frozen
class Traffic:
    """The collectives of a traced graph.

    Attributes:
        count: (op, group size) → how many there are.
        wire_bytes: bytes a rank sends, ring model.
    """

    count: Counter[tuple[str, int]]
    wire_bytes: float


def trace(config: Config) -> fx.GraphModule:
    """The make_fx graph of one step on rank 0 of a fake process group: forward, loss and gradients, local tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    mesh = init_device_mesh("cpu", tuple(MESH.values()), mesh_dim_names=tuple(MESH))
    placements = {name: _placements(name, config) for name in parameter_shapes(config)}
    with FakeTensorMode(allow_non_fake_inputs=True), strided_shards_on_real_tensors():
        parameters = {
            name: torch.empty(_local(shape, placements[name])) for name, shape in parameter_shapes(config).items()
        }
        tokens = torch.zeros(config.batch // MESH["data"], config.seq, dtype=torch.int64)
        return make_fx(_step(config, mesh, placements))(parameters, tokens, tokens.clone())


def traffic(graph: fx.Graph) -> Traffic:
    """What the functional collectives of a graph send."""
    count: Counter[tuple[str, int]] = Counter()
    total = 0.0
    for node in graph.nodes:
        kind = getattr(node.target, "__name__", "").removesuffix(".default")
        if getattr(node.target, "namespace", "") not in ("_c10d_functional", "_dtensor") or "wait" in kind:
            continue
        group = _resolve_process_group(node.args[-1]).size()
        sent, made = node.args[0].meta["val"].nbytes, node.meta["val"].nbytes
        count[kind, group] += 1
        total += (group - 1) / group * max(sent, made) * (2 if kind == "all_reduce" else 1)
    return Traffic(count, total)


def _placements(name: str, config: Config) -> tuple[Any, Any]:
    """As in the plan tp_fsdp; what that replicates is divided over data."""
    text = dict(part.split(": ") for part in shardings(config, "tp_fsdp")[0][name].split(", ") if part)
    data, model = (Shard(int(text[axis][2])) if axis in text else None for axis in MESH)
    return data or Shard(0), model or R


def _local(shape: tuple[int, ...], placements: tuple[Any, Any]) -> tuple[int, ...]:
    sizes = list(shape)
    for placement, count in zip(placements, MESH.values(), strict=True):
        if isinstance(placement, Shard):
            sizes[placement.dim] //= count
    return tuple(sizes)


@contextlib.contextmanager
def strided_shards_on_real_tensors() -> Iterator[None]:
    """torch 2.13 asks a fake tensor for its numbers where batch and heads, both divided, are flattened."""
    kind = placement_types._StridedShard
    original = kind.local_shard_size_and_offset

    def on_real_tensors(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return original(*args, **kwargs)

    with mock.patch.object(kind, "local_shard_size_and_offset", on_real_tensors):
        yield


def _step(config: Config, mesh: DeviceMesh, placements: dict[str, tuple[Any, Any]]) -> Any:
    def step(parameters: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        leaves: dict[str, Any] = {
            name: DTensor.from_local(p.detach(), mesh, placements[name], run_check=False).requires_grad_()
            for name, p in parameters.items()
        }
        w = {name: _placed(leaf, (R, placements[name][1])) for name, leaf in leaves.items()}
        ids, targets = (DTensor.from_local(t, mesh, (BATCH, R), run_check=False) for t in (tokens, labels))
        cos, sin = rotary(config, tokens.device, torch.float32)
        x = _replicated(F.embedding(ids, w["embed"]))
        for layer in range(config.layers):
            own = {n.split(".")[1]: p for n, p in w.items() if n.startswith(f"l{layer}.")}
            h = _replicated(rms_norm(x, own["norm1"]))
            attend = _attention_on_local if config.attention == "sdpa" else _attention
            out = attend(config, h @ own["wq"], h @ own["wk"], h @ own["wv"], cos, sin)
            x = x + _replicated(out @ own["wo"])
            h = _replicated(rms_norm(x, own["norm2"]))
            x = x + _replicated((F.silu(h @ own["w1"]) * (h @ own["w3"])) @ own["w2"])
        logits = _replicated(_replicated(rms_norm(x, w["norm"])) @ w["lm_head"])
        picked = logits.gather(-1, targets[..., None])[..., 0]
        loss = _placed((torch.logsumexp(logits, dim=-1) - picked).mean(), (R, R))
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        local = [_placed(g, p).to_local() for g, p in zip(gradients, placements.values(), strict=True)]
        return {"loss": loss.detach().to_local()} | dict(zip(leaves, local, strict=True))

    return step


def _replicated(x: Any) -> Any:
    """`x`, and its gradient, whole on every rank of model: a pending sum is done once for all that use it."""
    return _placed(x, (BATCH, R))


def _placed(x: Any, placements: tuple[Any, Any]) -> Any:
    return x.redistribute(placements=placements)


def _attention_on_local(config: Config, q: Any, k: Any, v: Any, cos: Tensor, sin: Tensor) -> Any:
    """The fused kernel on each rank's own heads, for DTensor has no rule of it on CPUs."""
    mesh, held = q.device_mesh, q.placements
    q, k, v = (t.to_local(grad_placements=held) for t in (q, k, v))
    batch, seq, _ = q.shape
    head, group = config.dim // config.heads, config.heads // config.kv_heads
    q = rotate(q.view(batch, seq, -1, head), cos[:, None], sin[:, None]).transpose(1, 2)
    k = rotate(k.view(batch, seq, -1, head), cos[:, None], sin[:, None]).transpose(1, 2)
    k = k.repeat_interleave(group, dim=1)
    v = v.view(batch, seq, -1, head).transpose(1, 2).repeat_interleave(group, dim=1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, seq, -1)
    return DTensor.from_local(out, mesh, held, run_check=False)


def _attention(config: Config, q: Any, k: Any, v: Any, cos: Tensor, sin: Tensor) -> Any:
    """Plain products and softmax on global tensors."""
    batch, seq, _ = q.shape
    head, group = config.dim // config.heads, config.heads // config.kv_heads
    cos, sin, positions = (
        DTensor.from_local(t, q.device_mesh, (R, R), run_check=False)
        for t in (cos, sin, torch.arange(seq, device=q.device))
    )

    def repeated(t: Any) -> Any:
        wide = t[:, :, None].expand(batch, config.kv_heads, group, seq, head)
        return wide.reshape(batch, config.heads, seq, head)

    q = rotate(q.view(batch, seq, config.heads, head), cos[:, None], sin[:, None]).transpose(1, 2)
    k = repeated(rotate(k.view(batch, seq, config.kv_heads, head), cos[:, None], sin[:, None]).transpose(1, 2))
    v = repeated(v.view(batch, seq, config.kv_heads, head).transpose(1, 2))
    scores = q @ k.transpose(-1, -2) * head**-0.5
    scores = scores.masked_fill(positions[:, None] < positions[None, :], torch.finfo(q.dtype).min)
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, seq, config.heads * head)
