"""Our scheduler beside PyTorch's on the graphs and tables of measured times of AutoParallel's overlap simulator.

`python -m benchmarks.saved_graphs autoparallel/autoparallel/tools/overlap_simulator` is given that folder of a checkout
of https://github.com/meta-pytorch/autoparallel. Its graphs are Python files, which are run. Those of Llama 3 8B are
read; those of DeepSeek V3 need Triton. Collectives take what the tables say of their groups: a latency, and a time on
the links. A table without reduce_scatter of a group has it as long as the all_gather of as many bytes. All else
takes what its flops and its bytes take on the topology; views take nothing.
"""

from __future__ import annotations

import bisect
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from benchmarks.measure import listed, options, print_table
from benchmarks.plain_schedule import scheduled
from benchmarks.rank_graph import RankGraph, is_start, kind_and_group, read
from benchmarks.torch_schedules import VARIANTS, compared, schedule_overlap_bucketing
from spmdir.reshard.topology import H100X8, Topology
from spmdir.schedule.program import Program, Task, Transfer
from spmdir.schedule.simulate import Execution, simulate

GRAPHS = ("fw_64_1d", "bw_64_1d", "fw_64_2d", "bw_64_2d", "fw_256_1d", "bw_256_1d", "fw_256_2d", "bw_256_2d")

WITHIN_NODES = "1"
"""The group of tensor parallelism, which uses other links than that of FSDP."""

MEGABYTE = 2**20


@attrs.frozen
class Line:
    """Measured times of a collective: bytes of its operand, ascending, and seconds."""

    bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def latency(self) -> float:
        """The time of no bytes, on the line through the first two points."""
        (one, two), (first, second) = self.bytes[:2], self.seconds[:2]
        return max(0.0, first - one * (second - first) / (two - one))

    def time(self, size: float) -> float:
        """Return the seconds of `size` bytes, on the line through the two points next to it."""
        sizes, seconds = (0.0, *self.bytes), (self.latency, *self.seconds)
        at = min(bisect.bisect(sizes, size), len(sizes) - 1)
        slope = (seconds[at] - seconds[at - 1]) / (sizes[at] - sizes[at - 1])
        return seconds[at - 1] + slope * (size - sizes[at - 1])


@attrs.frozen
class Table:
    """Measured times of the collectives of each group, by its name and theirs."""

    lines: Mapping[tuple[str, str], Line]

    def transfer(self, start: fx.Node) -> Transfer:
        """Return what a collective sends, as long as it was measured."""
        kind, group = kind_and_group(start)
        size = float(start.all_input_nodes[0].meta["val"].nbytes)
        line = self.lines.get((group, kind))
        if line is None and kind == "reduce_scatter_tensor":
            line, size = self.lines[group, "all_gather_into_tensor"], size / start.args[2]  # type: ignore
        assert line is not None, f"the table has no {kind} of group {group}"
        busy = line.time(size) - line.latency
        intra, inter = (busy, 0.0) if group == WITHIN_NODES else (0.0, busy)
        return Transfer(group, (group,), line.latency, intra, inter, size)


def read_table(path: Path) -> Table:
    """Return a table of times: a line a collective, with its group, and milliseconds below the number of MB."""
    header, _, *lines = path.read_text().splitlines()
    sizes = [float(word.removesuffix("MB")) * MEGABYTE for word in header.split() if word.endswith("MB")]
    found: dict[tuple[str, str], Line] = {}
    for line in lines:
        group, _, kind, *times = line.split()
        found[group, kind] = Line(tuple(sizes), tuple(float(time) / 1e3 for time in times))
    return Table(found)


class _Inputs:
    """What a saved graph asks for its inputs: tensors without values.

    Attributes:
        args: them.
    """

    def __init__(self) -> None:
        self.args: list[Any] = []

    def storage(self, _: Any, size: int, *, device: Any = None, dtype_hint: Any = None) -> int:
        return size

    def tensor(self, _: int, shape: Any, stride: Any = None, *, dtype: torch.dtype = torch.float32, **__: Any) -> None:
        made = torch.empty(shape, dtype=dtype)
        self.args.append(made if stride is None else made.as_strided(shape, stride))

    def symint(self, value: int) -> None:
        self.args.append(value)


def load(path: Path) -> tuple[fx.GraphModule, Table]:
    """Run a file with a saved graph, connect groups of its names, and return the graph and its table."""
    saved: Any = types.ModuleType(path.stem)
    text = path.read_text().replace("type='cuda', index=0", "type='cpu'").replace("type='cuda'", "type='cpu'")
    exec(compile(text, path, "exec"), saved.__dict__)
    groups = saved.get_pg_config()
    dist.init_process_group("fake", rank=0, world_size=max(g["size"] for g in groups.values()), store=FakeStore())
    made = {name: dist.new_group(list(range(given["size"]))) for name, given in groups.items()}
    c10d: Any = torch._C._distributed_c10d  # type: ignore
    c10d._unregister_all_process_groups()
    for name, group in made.items():
        c10d._register_process_group(name, group)
    inputs = _Inputs()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        saved.load_args(inputs)
        graph = make_fx(saved.Repro())(*inputs.args)
    return graph, read_table(path.with_name(saved.get_colls_estimations_file()))


def priced(graph: fx.GraphModule, table: Table, topology: Topology) -> RankGraph:
    """Return a graph with what its nodes cost."""
    tasks: dict[fx.Node, Task] = {}
    for node in graph.graph.nodes:
        if is_start(node):
            tasks[node] = Task(node.name, kind_and_group(node)[0], "", 0.0, transfer=table.transfer(node))
        elif node.op == "call_function" and (seconds := _seconds(node, topology)):
            tasks[node] = Task(node.name, str(node.target), "", seconds)
    return RankGraph(graph, tasks)


def _seconds(node: fx.Node, topology: Topology) -> float:
    """Return what a node takes on the topology: the longer of its flops and its bytes; a view takes nothing."""
    made, read = list(_tensors(node)), [tensor for source in node.all_input_nodes for tensor in _tensors(source)]
    held = {tensor.untyped_storage()._cdata for tensor in read}
    moved = sum(tensor.nbytes for tensor in made if tensor.untyped_storage()._cdata not in held)
    if not moved or "_c10d_functional" in str(node.target):
        return 0.0
    moved += sum(tensor.nbytes for tensor in read)
    formula, flops = flop_registry.get(getattr(node.target, "overloadpacket", None)), 0
    if formula is not None:
        args, kwargs = pytree.tree_map_only(fx.Node, lambda source: source.meta["val"], (node.args, node.kwargs))
        flops = formula(*args, **kwargs, out_val=node.meta["val"])
    return topology.launch_latency + max(flops / topology.peak("bf16"), moved / topology.memory_bandwidth)


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    return (value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor))


def schedules(path: Path, topology: Topology) -> Iterator[tuple[str, Execution]]:
    """Yield the graph of a file as it runs: as it is, scheduled by spmdir, and by PyTorch."""
    found = _loaded(path, topology)
    yield "as saved", simulate(read(found, topology))
    yield "spmdir", _scheduled(found, topology)
    for variant, given in VARIANTS.items():
        found = _loaded(path, topology)
        schedule_overlap_bucketing(found, **given)
        yield variant, simulate(read(found, topology))


def _scheduled(found: RankGraph, topology: Topology) -> Execution:
    """Return a graph as it runs scheduled by spmdir."""
    starts = {node.name: node for node in found.operands}
    keys = {name: (*kind_and_group(node), node.meta["val"].dtype, *node.args[1:]) for name, node in starts.items()}

    def packing(program: Program, bucket: Sequence[int]) -> tuple[float, float]:
        return found.copies([starts[program.tasks[at].name] for at in bucket], topology)

    return scheduled(read(found, topology), keys, packing)


def _loaded(path: Path, topology: Topology) -> RankGraph:
    """Return the graph of a file with what its nodes cost."""
    if dist.is_initialized():
        dist.destroy_process_group()
    return priced(*load(path), topology)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder", type=Path, help="tools/overlap_simulator; its files are run")
    parser.add_argument("--graphs", type=listed(str), default=list(GRAPHS), help=f"default {','.join(GRAPHS)}")
    given = parser.parse_args()
    for name in given.graphs:
        path = given.folder / f"repro_llama3_8b_{name}.py"
        print_table(name, compared(dict(schedules(path, H100X8))))


if __name__ == "__main__":
    main()
