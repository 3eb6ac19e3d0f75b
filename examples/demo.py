"""A small Hugging Face Llama, partitioned on a 2×4 mesh and checked against one device: the whole way in one file."""

from __future__ import annotations

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.dialects.ir import main_function

MESH = spmdir.Mesh({"dp": 2, "tp": 4})
SHARDINGS = {
    "input_ids": "dp: S(0)",
    "*.[qkv]_proj.weight": "tp: S(0)",
    "*.o_proj.weight": "tp: S(1)",
    "*.gate_proj.weight": "tp: S(0)",
    "*.up_proj.weight": "tp: S(0)",
    "*.down_proj.weight": "tp: S(1)",
    "model.embed_tokens.weight": "tp: S(0)",
    "lm_head.weight": "tp: S(0)",
    "*norm.weight": "",
    "*layernorm.weight": "",
}
"""Megatron tensor parallelism on tp, data parallelism on dp; the vocabulary is divided too."""


class Logits(torch.nn.Module):
    """The language model as a function of token ids alone."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model, self.lm_head = model.model, model.lm_head

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(input_ids=input_ids, use_cache=False).last_hidden_state)


def small_llama() -> tuple[torch.nn.Module, torch.Tensor]:
    """A two-layer Llama with grouped-query attention and random weights, and token ids for it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=256,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config).eval().to(torch.float64)
    return Logits(model), torch.randint(0, 256, (4, 16))


def layer(module: ModuleOp, number: int) -> str:
    """Return the lines of one decoder layer: those of the ops whose location names its module."""
    places = [str(op.location) for op in main_function(module).body.block.ops if op.results]
    lines = [line for line in spmdir.print_ir(module).splitlines() if line.startswith("  %")]
    inside = (line for line, place in zip(lines, places, strict=True) if f"model.layers.{number}." in place)
    return "\n".join(inside)


def main() -> int:
    """Print the layer before and after, the communication table and the error; 0 if the numbers are right."""
    model, ids = small_llama()
    program = torch.export.export(model, (ids,))
    module = spmdir.import_fx(program, MESH, SHARDINGS)
    print("== one layer as imported\n" + layer(module, 0))
    spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard,fuse-collectives")
    print("\n== the same layer, partitioned\n" + layer(module, 0))
    print("\n== communication of the whole program\n" + str(spmdir.report.comm_report(module)))
    (logits,) = spmdir.simulate(module, [ids], program.state_dict)
    expected = model(ids)
    error = ((logits - expected).abs().max() / expected.abs().max()).item()
    print(f"\n== {MESH.world_size} simulated ranks against one device: largest relative error {error:.2e}")
    return 0 if error < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
