"""Trace a call of a model with caches as a functional program, without torch.export.

The trace runs the model once on fake tensors. Parameters and buffers are inputs of the traced function, and new values
of caches are results. So nothing is written in place, and no second trace is needed to make the program functional.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spmdir.importer.admitted_nodes import reject_effects
from spmdir.importer.program import Output, Program, is_small
from spmdir.importer.read_traced import read_traced
from spmdir.importer.torch_errors import torch_errors
from spmdir.runtime.traced_locations import record_locations
from spmdir.torch_interop.grouped_products import DECOMPOSITIONS
from spmdir.torch_interop.tied_names import tied_names


def trace_call(model: nn.Module, inputs: Mapping[str, Tensor], task: str) -> Program:
    """Return the program of a call of the model.

    Args:
        model: its forward returns (a tensor, name of a buffer → its new value).
        inputs: keyword → example of an input.
        task: the call in errors, such as "decode".

    Raises:
        UnsupportedError: torch cannot trace the call.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import

    state: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    names = tied_names(state.items())
    values = {first: state[first] for first, *_ in names}
    written: list[str] = []

    def call(values: dict[str, Tensor], inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        with record_locations(model):
            result, new_values = torch.func.functional_call(model, values, (), dict(inputs), tie_weights=True)
        written[:] = new_values
        return result, *new_values.values()

    with torch_errors(f"{task} of the model cannot be traced"), torch.no_grad():
        traced = make_fx(call, DECOMPOSITIONS, tracing_mode="fake", pre_dispatch=True)(values, dict(inputs))
    reject_effects(traced)
    program = read_traced(traced, None)
    saved = model.state_dict().keys()
    entries = [_state_input(entry_names, state[entry_names[0]], saved, written) for entry_names in names]
    entries += [((name,), "input", None) for name in inputs]
    constants = len(program.inputs) - len(entries)
    placed = [
        attrs.evolve(entry, names=names, kind=kind, value=value)
        for entry, (names, kind, value) in zip(program.inputs[constants:], entries, strict=True)
    ]
    result, *versions = program.outputs
    mutations = [Output(new.value, (name,), "mutation", name) for name, new in zip(written, versions, strict=True)]
    return Program(program.graph, [*program.inputs[:constants], *placed], [attrs.evolve(result, names=()), *mutations])


def _state_input(names: tuple[str, ...], value: Tensor, saved: Any, written: list[str]) -> tuple[Any, str, Any]:
    """Return (names, kind, value) of the input of a parameter or buffer.

    A small buffer outside the state dict, such as the frequencies of rotary embeddings, is a constant.
    """
    if isinstance(value, nn.Parameter):
        return names, "parameter", None
    is_constant = names[0] not in saved and names[0] not in written and is_small(value)
    return (names, "constant", value) if is_constant else (names, "buffer", None)
