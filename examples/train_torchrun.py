"""Train a small Llama on real ranks, data and tensor parallel, and check it against one device.

Run with `torchrun --nproc-per-node 4 examples/train_torchrun.py`; it uses NCCL where there are GPUs for all ranks, else
gloo.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from transformers import LlamaConfig, LlamaForCausalLM

import spmdir

UPDATES = 3
SHARDINGS = {
    "arg*": "dp: S(0)",
    "*.[qkv]_proj.weight": "tp: S(0), dp: S(1)",
    "*.o_proj.weight": "dp: S(0), tp: S(1)",
    "*.gate_proj.weight": "tp: S(0), dp: S(1)",
    "*.up_proj.weight": "tp: S(0), dp: S(1)",
    "*.down_proj.weight": "dp: S(0), tp: S(1)",
    "model.embed_tokens.weight": "tp: S(0), dp: S(1)",
    "lm_head.weight": "tp: S(0), dp: S(1)",
    "*norm.weight": "dp: S(0)",
}
"""The batch is divided by dp, every weight and its moments by tp, Megatron style, and again by dp."""


def small_llama() -> tuple[torch.nn.Module, torch.Tensor]:
    """A one-layer Llama with random weights and token ids for it; equal on all ranks, since all seed alike."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=256,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).to(torch.float64), torch.randint(0, 256, (8, 16))


def loss(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each next token."""
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def main() -> int:
    """Train on all ranks and on one; 0 if losses and final parameters are equal."""
    on_cuda = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dist.init_process_group("nccl" if on_cuda else "gloo")
    ranks = dist.get_world_size()
    tp = 2 if ranks % 2 == 0 else 1
    mesh = spmdir.Mesh({"dp": ranks // tp, "tp": tp})
    model, ids = small_llama()
    step, state = spmdir.training_step(model, loss, torch.optim.AdamW(model.parameters(), lr=1e-3))

    parallel = spmdir.parallelize(step, mesh, SHARDINGS, (ids,), state=state)
    losses = [parallel(ids).item() for _ in range(UPDATES)]
    trained = parallel.gather_state()

    whole = sum(tensor.numel() for tensor in pytree.tree_leaves(state))
    expected = []
    for _ in range(UPDATES):
        value, state = step(state, ids)
        expected.append(value.item())
    error = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    distance = max(
        (trained["parameters"][name].cpu() - tensor).abs().max().item() for name, tensor in state["parameters"].items()
    )
    if dist.get_rank() == 0:
        held = sum(tensor.to_local().numel() for tensor in parallel.state.values())
        print(f"mesh {mesh} on {parallel.device.type}; a rank holds {held / whole:.0%} of the state")
        print(spmdir.report.comm_report(parallel.module))
        print("losses " + ", ".join(f"{value:.6f}" for value in losses))
        print(f"against one device: losses differ by {error:.1e}, parameters by {distance:.1e} at most")
    dist.destroy_process_group()
    return 0 if error < 1e-6 and distance < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
