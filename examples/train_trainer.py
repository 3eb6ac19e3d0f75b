"""Train a small Llama with Hugging Face's Trainer, or by an Accelerate loop, and check both against one device.

Run with `torchrun --nproc-per-node 2 examples/train_trainer.py`. Every rank gets its own batches from the library. What
differs from a script for one device is the call of `shard_module` and two attributes.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import spmdir

UPDATES, ROWS, LENGTH = 3, 4, 8
PLAN = {"*.weight": "dp: S(0)", "arg*": "dp: S(0)"}
"""FSDP: weights and the batch are divided by dp."""


def small_llama() -> LlamaForCausalLM:
    """A one-layer Llama with random weights; equal on all ranks, since all seed alike."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    return LlamaForCausalLM(config).double()


def samples(ranks: int) -> list[dict[str, torch.Tensor]]:
    """The samples of all updates of all ranks."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (UPDATES * ROWS * ranks, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def sharded_llama(ranks: int) -> LlamaForCausalLM:
    """The model on all ranks, each of which passes its own batches."""
    whole = torch.zeros(ROWS * ranks, LENGTH, dtype=torch.int64)
    examples = {"input_ids": whole, "labels": whole}
    model: Any = spmdir.shard_module(
        small_llama(), spmdir.Mesh({"dp": ranks}), PLAN, example_kwargs=examples, local_inputs=True
    )
    model._is_accelerate_prepared = model._is_distributed_loading_by_transformers = True  # so that none wraps it again
    model.accepts_loss_kwargs = False  # its loss is the mean over the tokens of all ranks
    return model


def by_trainer(model: LlamaForCausalLM, ranks: int) -> None:
    """Train with Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=ROWS, num_train_epochs=1, learning_rate=1e-2, report_to=[],
            save_strategy="no", train_sampling_strategy="sequential", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=samples(ranks)).train()


def by_accelerate(model: LlamaForCausalLM, ranks: int) -> None:
    """Train in a loop of one's own."""
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(samples(ranks), batch_size=ROWS)  # type: ignore  # a list is a dataset
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def alone(ranks: int, schedule: bool) -> dict[str, torch.Tensor]:
    """The parameters after the same updates on one device, with Trainer's schedule of the learning rate or without."""
    model = small_llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0 if schedule else 1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / UPDATES if schedule else 1.0)
    for batch in DataLoader(samples(ranks), batch_size=ROWS * ranks):  # type: ignore  # a list is a dataset
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return gathered(model)


def gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The whole parameters."""
    state = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in model.named_parameters()}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def main() -> int:
    """Train in both ways; 0 if the parameters are those of one device."""
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    model, worst = sharded_llama(ranks), 0.0
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for train in (by_trainer, by_accelerate):
        model.load_state_dict(first)
        train(model, ranks)
        found, wanted = gathered(model), alone(ranks, schedule=train is by_trainer)
        error = max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
        print(f"{train.__name__}: parameters differ from one device by at most {error:.1e}")
        worst = max(worst, error)
    dist.destroy_process_group()
    return int(worst > 1e-12)


if __name__ == "__main__":
    sys.exit(main())
