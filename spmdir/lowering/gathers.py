"""All-gathers into new memory, for programs that run on CPUs.

To a process group, the functional `all_gather_into_tensor` is an all-gather of a list with one tensor. gloo calls it
`ALLGATHER_COALESCED`. Only this name is too long for the inline buffer of a string, so it is on the heap. In torch 2.11
to 2.13, the two worker threads of a group store the name of the last completed collective in one string, without a
lock. If two all-gathers complete together, both threads free the previous name. The heap is corrupt, and the process
aborts later:

    a = all_gather_into_tensor(x, 2, group)    worker 1: name = "ALLGATHER_COALESCED"    frees the previous name
    b = all_gather_into_tensor(y, 2, group)    worker 2: name = "ALLGATHER_COALESCED"    frees the previous name again

`all_gather_into_tensor_out` is an `ALLGATHER` in gloo. That name fits into the string object, so nothing is freed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from spmdir.torch_interop.tracers import takes_outputs

functional = torch.ops._c10d_functional


def write_gathers(program: fx.GraphModule, device_mesh: Any) -> None:
    """Replace the functional all-gathers of a program by calls that write into new memory, in its graph.

    A program on another device than a CPU is not changed. The caller generates the code of the program.
    """
    if device_mesh.device_type != "cpu":
        return
    for node in program.graph.find_nodes(op="call_function", target=functional.all_gather_into_tensor.default):
        node.target = all_gather_into_tensor


def all_gather_into_tensor(x: Tensor, count: int, group: str) -> Tensor:
    """Return the concatenation of the tensors of the `count` ranks of a group, as the functional op of this name does.

    The functional op is called under tracers that reject writes into outputs, and for tensors that need gradients.
    """
    if not takes_outputs() or (torch.is_grad_enabled() and x.requires_grad):
        return functional.all_gather_into_tensor.default(x, count, group)
    size, *inner_sizes = x.shape
    return functional.all_gather_into_tensor_out.default(x, count, group, out=x.new_empty((size * count, *inner_sizes)))
