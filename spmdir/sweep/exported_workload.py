"""Workloads of exported programs: a `.pt2` file whose program returns its loss, priced as a whole."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spmdir.core.errors import SpmdirError, UnsupportedError, shown
from spmdir.importer.pt2_archive import load_pt2
from spmdir.plans.exported_model import runnable_model
from spmdir.sweep.workload import LayerPattern, TrainingCase, Workload, library_errors
from spmdir.torch_interop import pytree


@attrs.frozen(slots=False)
class ExportedModel(Workload):
    """A program of `torch.export.save` that returns its loss. Its depth cannot be changed.

    Attributes:
        name: the name of the model in reports.
        path: the file.
        sequence: the number of tokens of a sample; 1 if samples have no tokens.
        trust: whether the file may execute code.
        digest: of the content of the file.
    """

    name: str
    path: str
    sequence: int = 1
    trust: bool = False
    digest: str = attrs.field(default="", repr=False)

    @classmethod
    def read(cls, path: str, sequence: int | None = None, trust: bool = False) -> ExportedModel:
        """Read a `.pt2` file.

        Args:
            sequence: the number of tokens of a sample, for the throughput; by default 1.

        Raises:
            SpmdirError: the file is not an exported program that returns a loss, or could execute code.
        """
        workload = cls(Path(path).stem, path, sequence or 1, trust)
        _check_loss(workload.program, path)
        with open(path, "rb") as file:
            return attrs.evolve(workload, digest=hashlib.file_digest(file, "sha256").hexdigest())

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The program."""
        return load_pt2(self.path, self.trust)

    @property
    def layers(self) -> LayerPattern | None:
        return None

    @property
    def samples(self) -> int | None:
        sizes = [value.shape[0] for value in _example_inputs(self.program) if isinstance(value, Tensor) and value.dim()]
        return sizes[0] if sizes and isinstance(sizes[0], int) else None

    def model(self) -> nn.Module:
        with library_errors(f"cannot run {self.path}"):
            return runnable_model(self.program).to("meta")

    def case(self, samples: int, depth: int | None) -> TrainingCase:
        """Return the module, a loss that returns its first result, and a batch like the examples of the program."""
        batch = tuple(_resized(value, samples, self.path) for value in _example_inputs(self.program))
        spec, path, only_size = self.program.call_spec.in_spec, self.path, self.samples
        assert spec is not None  # torch.export sets it

        def loss(model: nn.Module, *leaves: Any) -> Tensor:
            """Return the first result of the model. A program for one batch size rejects any other size."""
            size = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)
            if only_size not in (None, size):
                raise UnsupportedError(
                    f"{path} was exported for a batch of {only_size} samples; expected {size}: export it "
                    "with a dynamic batch size, as dynamic_shapes={'x': {0: "
                    "torch.export.Dim('batch')}}"
                )
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            return pytree.tree_leaves(model(*args, **kwargs))[0]

        return TrainingCase(self.model(), loss, batch)


def _check_loss(program: torch.export.ExportedProgram, path: str) -> None:
    """Raise SpmdirError unless the first result of `program` is a loss."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    results = [values.get(str(name)) for name in program.graph_signature.user_outputs]
    loss = results[0] if results else None
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        kind = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else shown(loss)
        raise SpmdirError(
            f"{path} returns {kind}; expected a loss, one floating-point number: export a module whose forward "
            "computes the loss from the batch"
        )


def _example_inputs(program: torch.export.ExportedProgram) -> list[Any]:
    """Return the inputs of the program: fake tensors and numbers."""
    inputs = set(program.graph_signature.user_inputs)
    return [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]


def _resized(value: Any, samples: int, path: str) -> Any:
    """Return a tensor on the meta device like an input of the program, for a batch of `samples`.

    Raises:
        UnsupportedError: another size than that of the batch is dynamic.
    """
    if not isinstance(value, Tensor):
        return value
    shape = [samples, *value.shape[1:]] if value.dim() else []
    for size in shape:
        if not isinstance(size, int):
            raise UnsupportedError(
                f"{path} has the dynamic size {size}; expected a dynamic batch size only: export it for the length of "
                "the samples"
            )
    return torch.zeros(shape, dtype=value.dtype, device="meta")
