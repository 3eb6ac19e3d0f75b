"""How evenly causal attention is shared where the sequence is sharded, and what is sent.

For 4 and 8 ranks and the placements S and ZigZag of the sequence, by gathering keys and values (all-gather), by
sending their blocks round a ring with the plug-in of docs/placements/ring-attention.md (ring), and by sharding heads
instead of positions (Ulysses): the pairs of query and key that the mask leaves and the flops of the
emitted program, each of the busiest rank relative to the mean, the flops of the busiest rank, and the bytes that a
rank sends, for a batch of one. A kernel that is given a mask computes masked pairs too; in a ring, ranks leave out
the blocks that the mask hides.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import spmdir
from benchmarks.measure import listed
from spmdir.core.intervals import Ranges
from spmdir.core.placement.shards import ShardPlacement

HEADS, WIDTH = 8, 64

METHODS: dict[str, Callable[[str], str]] = {
    "all-gather": lambda placement: f"{placement}(2)",
    "ring": lambda placement: f"{placement}(2)",
    "Ulysses": lambda placement: "S(1)",
}
"""Method → the placement of the attention's result, for that of the sequence."""

PROGRAM = """\
spmd.mesh @mesh <cp = {count}>

func.func @attention(%query: tensor<1x{heads}x{length}x{width}x{dtype}> {{spmd.sharding = #spmd.sharding<@mesh, cp: {held}>}},
                     %key: tensor<1x{heads}x{length}x{width}x{dtype}> {{spmd.sharding = #spmd.sharding<@mesh, cp: {held}>}},
                     %value: tensor<1x{heads}x{length}x{width}x{dtype}> {{spmd.sharding = #spmd.sharding<@mesh, cp: {held}>}})
    -> (tensor<1x{heads}x{length}x{width}x{dtype}> {{spmd.sharding = #spmd.sharding<@mesh, cp: {held}>}}) {{
  %0 = aten.scaled_dot_product_attention(%query, %key, %value) {{dropout_p = 0.0, is_causal = true}} : tensor<1x{heads}x{length}x{width}x{dtype}> <cp: {made}>
  return %0 : tensor<1x{heads}x{length}x{width}x{dtype}>
}}
"""  # noqa: E501


def partitioned(method: str, placement: str, count: int, length: int, dtype: str = "bf16"):
    """Return causal attention over `length` positions sharded by `placement`, with its collectives."""
    made = METHODS[method](placement)
    sizes = {"count": count, "heads": HEADS, "length": length, "width": WIDTH, "dtype": dtype}
    module = spmdir.parse(PROGRAM.format(**sizes, held=f"{placement}(2)", made=made))
    passes = "propagate,insert-reshard,lower-reshard,fuse-collectives,localize"
    if method != "ring":
        return spmdir.run_passes(module, passes)
    # Keys and values that are gathered are not the least that a rank can hold.
    passes = passes.replace("propagate", "propagate{memory=least}")
    return spmdir.run_passes(module, spmdir.Pipeline(passes, plugins=[ring_plugin()]))


@functools.cache
def ring_plugin() -> str:
    """Return the path of a file with the plug-in that the page on ring attention shows."""
    page = (Path(__file__).parents[1] / "docs/placements/ring-attention.md").read_text()
    shown = re.search(r"<<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    assert shown
    path = Path(tempfile.mkdtemp()) / "ring_attention.py"
    path.write_text(shown[1])
    return str(path)


def pairs(method: str, placement: str, count: int, length: int) -> list[int]:
    """Return the number of pairs of query and key that the mask leaves on each rank, of all heads."""
    if method == "Ulysses":
        return [HEADS // count * length * (length + 1) // 2] * count
    return [
        HEADS * sum((end * (end + 1) - start * (start + 1)) // 2 for start, end in own)
        for own in ranges(placement, count, length)
    ]


def ranges(placement: str, count: int, length: int) -> list[Ranges]:
    """Return the ranges of positions on each rank."""
    held = spmdir.placement.parse_placement(f"{placement}(0)")
    assert isinstance(held, ShardPlacement)
    return [held.ranges(length, count, rank) for rank in range(count)]


def flops(module, count: int, length: int, placement: str) -> list[int]:
    """Return the flops of each rank's emitted program."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    formula = {kernel: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
    found = []
    for rank, own in enumerate(ranges(placement, count, length)):
        program = spmdir.lower_to_fx(module, rank=rank)
        shape = (1, HEADS, sum(end - start for start, end in own), WIDTH)
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            FlopCounterMode(display=False, custom_mapping=formula) as counter,
        ):
            program(*(torch.empty(shape, dtype=torch.bfloat16) for _ in range(3)))
        found.append(counter.get_total_flops())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=listed(int), default=[4, 8], help="numbers of ranks (default 4,8)")
    parser.add_argument("--length", type=int, default=4096, help="positions of the sequence (default 4096)")
    options = parser.parse_args()
    print(f"{HEADS} heads of width {WIDTH}, {options.length} positions, bf16\n")
    print(f"{'ranks':5} {'sequence':8} {'method':10} {'pairs':>6} {'flops':>6} {'Gflop':>7} {'sent':>9}")
    for count, placement, method in itertools.product(options.ranks, ("S", "ZigZag"), METHODS):
        module = partitioned(method, placement, count, options.length)
        left = pairs(method, placement, count, options.length)
        done = flops(module, count, options.length, placement)
        sent = spmdir.report.comm_report(module).wire_bytes
        shares = f"{max(left) * count / sum(left):5.2f}x {max(done) * count / sum(done):5.2f}x"
        print(f"{count:5} {placement:8} {method:10} {shares} {max(done) / 1e9:7.2f} {sent / 1e6:6.2f} MB")


if __name__ == "__main__":
    main()
