"""What PyTorch's partitioner recomputes within a memory budget, and what fit-memory recomputes within the same bytes.

Both take one graph of a training step on one accelerator, and go by the prices of spmdir. PyTorch's budget is a number
between 0 and 1, for the bytes that it saves for the backward part; how many these are, and the peak, is then counted
for both alike. Saved is what the forward part makes and the backward part uses, each storage once. Within as many
bytes, saved or at the peak, fit-memory is to recompute for less time.
"""

from __future__ import annotations

import copy
import statistics
import warnings
from collections.abc import Sequence

import attrs
import torch
import torch.distributed as dist
from torch import fx
from torch._functorch import config as settings
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomRuntimeEstimator

import spmdir
from benchmarks.measure import Row, listed, options, print_table
from benchmarks.programs import LLAMA_7B_WIDE, trace
from benchmarks.rank_graph import RankGraph, connect, rank_graph, read
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.reshard.topology import H100X8
from spmdir.schedule.memory_fitting import fit
from spmdir.schedule.program import Program, Task
from spmdir.schedule.repeated_tasks import Repeat, find_repeats, peak_with_repeats

MESH = spmdir.Mesh({"one": 1})

PIPELINE = "propagate{memory=none},expand,insert-reshard,lower-reshard,localize"

SHORT = 2.0**50
"""Bytes that make the end of the forward part the moment at which most is held."""


def training_step(layers: int, vocab: int) -> tuple[RankGraph, Program, int]:
    """Return a training step of a wide Llama in bfloat16 as a graph and as a program, and the task that ends its
    forward part. Views stay ops of their own, so that PyTorch finds the products that it knows."""
    config = attrs.evolve(LLAMA_7B_WIDE, layers=layers, batch=2, vocab=vocab)
    graph, *_ = trace(config, None, torch.bfloat16)
    module = spmdir.run_passes(spmdir.import_fx(graph, MESH, {}, fold_views=False), PIPELINE)
    program, units = rank_program(ir.main_function(module), MESH, as_pipeline(None).rules, H100X8)
    if dist.is_initialized():
        dist.destroy_process_group()
    found = rank_graph(module, connect(MESH), program, units)
    read_back = read(found, H100X8)
    seed = next(at for at, task in enumerate(read_back.tasks) if task.op == "aten.ones_like")
    (loss,) = read_back.tasks[seed].needs
    return found, read_back, loss


class _Price(CustomRuntimeEstimator):
    """The seconds of nodes by their names, as PyTorch asks for them."""

    def __init__(self, found: RankGraph):
        self.seconds = {node.name: task.seconds for node, task in found.tasks.items()}

    def __call__(self, node: fx.Node) -> float:
        return self.seconds.get(node.name, 0.0)

    def uuid(self) -> None:
        return None


def recomputed_by_torch(found: RankGraph, budget: float) -> set[str]:
    """Return the names of the nodes of the forward part that PyTorch runs again within a budget."""
    joint = copy.deepcopy(found.graph)
    inputs = [node for node in joint.graph.nodes if node.op == "placeholder"]
    (seed,) = (node for node in joint.graph.nodes if node.target is torch.ops.aten.ones_like.default)
    with joint.graph.inserting_after(inputs[-1]):
        tangent = joint.graph.placeholder("tangents_1")
    tangent.meta = dict(seed.meta)
    seed.replace_all_uses_with(tangent)
    joint.graph.erase_node(seed)
    for device in [node for node in joint.graph.nodes if node.target is getattr]:
        for user in list(device.users):
            user.kwargs = {key: torch.device("cpu") if given is device else given for key, given in user.kwargs.items()}
        joint.graph.erase_node(device)
    chosen = {"activation_memory_budget": budget, "activation_memory_budget_runtime_estimator": _Price(found)}
    with settings.patch(chosen | {"cse": False}):
        parts = min_cut_rematerialization_partition(
            joint, None, num_fwd_outputs=1, static_lifetime_input_indices=[*range(len(inputs))]
        )
    forward, backward = ({node.name for node in part.graph.nodes if node.op == "call_function"} for part in parts)
    return forward & backward


def saved_bytes(program: Program, end: int, added: Sequence[Repeat]) -> float:
    """Return the bytes that are made up to the task `end` and used after it, or by what runs again."""
    again = {repeat.task for repeat in added}
    made = {buffer for at in {*range(end + 1)} - again for buffer in program.tasks[at].allocates}
    read = {buffer for at in {*range(end + 1, len(program.tasks))} | again for buffer in program.tasks[at].reads}
    return sum(program.buffers[buffer].bytes for buffer in made & read)


def seconds_of(program: Program, added: Sequence[Repeat]) -> float:
    return sum(program.tasks[repeat.task].seconds for repeat in added)


def short_after(program: Program, end: int) -> Program:
    """Return a program whose memory is short between the task `end` and the next one."""
    tasks = [*program.tasks[: end + 1], Task("end", "end", "", 0.0, transient=SHORT)]
    for task in program.tasks[end + 1 :]:
        tasks.append(attrs.evolve(task, needs=tuple(need + (need > end) for need in task.needs)))
    return attrs.evolve(program, tasks=tuple(tasks))


def compared(layers: int, vocab: int, budget: float) -> tuple[float, float, str]:
    """Return the seconds of what fit-memory recomputes over PyTorch's: within the bytes that it saves, and within its
    peak; and what these bytes are."""
    found, program, end = training_step(layers, vocab)
    names = recomputed_by_torch(found, budget)
    added = find_repeats(program, end, {at for at, task in enumerate(program.tasks[: end + 1]) if task.name in names})
    seconds, saved, peak = (
        seconds_of(program, added),
        saved_bytes(program, end, added),
        peak_with_repeats(program, added),
    )
    short, every, all_saved = short_after(program, end), [True] * len(program.tasks), saved_bytes(program, end, ())
    ours = fit(short, peak_with_repeats(short, ()) - all_saved + saved, [*every, False])
    within = fit(program, peak, every)
    assert saved_bytes(short, end + 1, ours.rounds[0]) <= saved and within.peak <= peak
    detail = f"{1e3 * seconds:.2f} ms for {saved / 1e9:.2f} of {all_saved / 1e9:.2f} GB saved, peak {peak / 1e9:.2f} GB"
    return ours.seconds / seconds, within.seconds / seconds, detail


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=listed(int), default=[2, 4, 8], help="default 2,4,8")
    parser.add_argument("--vocabs", type=listed(int), default=[4096, 128256], help="default 4096,128256")
    parser.add_argument("--budgets", type=listed(float), default=[0.7, 0.5, 0.3], help="PyTorch's; default 0.7,0.5,0.3")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    saved, peak = list[float](), list[float]()
    for layers in given.layers:
        for vocab in given.vocabs:
            rows = list[Row]()
            for budget in given.budgets:
                *over, detail = compared(layers, vocab, budget)
                saved.append(over[0])
                peak.append(over[1])
                rows.append(Row(f"budget {budget}, over PyTorch's at its saved bytes", over[0], detail=detail))
                rows.append(Row(f"budget {budget}, over PyTorch's at its peak", over[1]))
            print_table(f"Seconds of recomputation, L={layers}, vocabulary {vocab}", rows)
    rows = [
        Row("at equal saved bytes", statistics.mean(saved), 0.95),
        Row("at equal peak", statistics.mean(peak), 0.95),
    ]
    print_table("Mean over PyTorch's", rows)


if __name__ == "__main__":
    main()
