"""Train a small Llama with Hugging Face's Trainer, or by an Accelerate loop, and check both against one device.

Run with `torchrun --nproc-per-node 2 examples/train_trainer.py`. Every rank gets its own batches from the library, and
both ways stop in mid-run and resume from a checkpoint. What differs from a script for one device is the call of
`shard_module`, two attributes, and how state is saved.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils.logging import disable_progress_bar

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
    model._is_accelerate_prepared = True  # so that it is not wrapped again
    model.accepts_loss_kwargs = False  # its loss is the mean over the tokens of all ranks
    return model


class ShardedTrainer(Trainer):
    """A Trainer that saves the state of all ranks, where Trainer has the first one save what it holds."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the whole model, for `from_pretrained`."""
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save:
            for old in folder.glob("*.safetensors*"):
                old.unlink()
        spmdir.checkpoint.save_safetensors(folder, self.model)
        if self.args.should_save:
            self.model.config.save_pretrained(folder)

    def _state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.lr_scheduler}

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        spmdir.checkpoint.save(Path(output_dir) / "state", self._state())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            spmdir.checkpoint.load(Path(checkpoint) / "state", self._state())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Leave the model to the method above, which is called next."""


def by_trainer(model: LlamaForCausalLM, ranks: int, folder: Path) -> None:
    """Train with Trainer, which saves after each update; then again from the checkpoint of the second."""
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=ROWS, num_train_epochs=1, learning_rate=1e-2, report_to=[],
        save_strategy="steps", save_steps=1, train_sampling_strategy="sequential", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    ShardedTrainer(model, arguments, train_dataset=samples(ranks)).train()
    erase(model)
    ShardedTrainer(model, arguments, train_dataset=samples(ranks)).train(f"{folder}/checkpoint-2")


def by_accelerate(model: LlamaForCausalLM, ranks: int, folder: Path) -> None:
    """Train in a loop of one's own, which saves the state before the last update and loads it."""
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(samples(ranks), batch_size=ROWS)  # type: ignore  # a list is a dataset
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for update, batch in enumerate(loader):
        if update == UPDATES - 1:
            spmdir.checkpoint.save(folder, {"model": model, "optimizer": optimizer})
            erase(model)
            optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.0))
            spmdir.checkpoint.load(folder, {"model": model, "optimizer": optimizer})
        accelerator.backward(model(**batch).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def erase(model: torch.nn.Module) -> None:
    """Set the parameters to zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()


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
    """Train in both ways; 0 if the parameters are those of one device, those that are saved too."""
    dist.init_process_group("gloo")
    disable_progress_bar()  # that of each rank would come between the lines of the first
    ranks = dist.get_world_size()
    folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folders)  # in a script, a path that all ranks share
    folder = Path(folders[0])
    model, equal = sharded_llama(ranks), True
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for train in (by_trainer, by_accelerate):
        model.load_state_dict(first)
        train(model, ranks, folder / train.__name__)
        found = {train.__name__: gathered(model)}
        if train is by_trainer:
            saved = folder / "by_trainer" / f"checkpoint-{UPDATES}"
            found["from_pretrained"] = gathered(LlamaForCausalLM.from_pretrained(saved))
        wanted = alone(ranks, schedule=train is by_trainer)
        for name, state in found.items():
            error = max(float((state[key] - wanted[key]).abs().max()) for key in wanted)
            equal &= error < 1e-12
            if dist.get_rank() == 0:
                print(f"{name}: parameters differ from one device by less than 1e-12: {error < 1e-12}")
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    dist.destroy_process_group()
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
