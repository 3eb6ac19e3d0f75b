"""Compare modelled times of collectives on H100 with published ones: `python -m benchmarks.published_prices`.

Prints each published time, the time of the cost model and their ratio, with the source. The topology is `h100x8`. Sizes
are bytes of the operand on a rank, from 1 MiB to 2 GiB.

Sources:
    tables: meta-pytorch/autoparallel at a54c252, `autoparallel/tools/overlap_simulator/colls{8,16,32}_8.table`. Group 1
        is 8 ranks of one node; group 0 has one rank in each node.
    logs: the latency and bandwidth of each algorithm and protocol that NCCL 2.27.5 logs on H100 nodes, as
        `autoparallel/cost_models/nccl_cost_model.py` quotes them. A time is the least over algorithms and protocols.
"""

from __future__ import annotations

import math
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from benchmarks.measure import Row, options, print_table
from spmdir.reshard.collectives import collective
from spmdir.reshard.cost import cost
from spmdir.reshard.topology import H100X8, Topology
from spmdir.reshard.traffic import Sizes

MIB = 2**20
SIZES = tuple(2**power * MIB for power in range(12))
"""Bytes of the operand in the tables."""

TOLERANCE = 0.15
"""The largest relative error of a time, as issue 29 requires it."""


@attrs.frozen
class Series:
    """Published times of a collective over one group, for each of SIZES.

    Attributes:
        kind: the collective.
        nodes, ranks_per_node: the group.
        milliseconds: one time for each size.
        source: the table or log.
        is_required: whether TOLERANCE applies.
    """

    kind: str
    nodes: int
    ranks_per_node: int
    milliseconds: tuple[float, ...]
    source: str
    is_required: bool = True

    @property
    def group(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.kind} {self.nodes}×{self.ranks_per_node}"


_WITHIN = "colls{8,16,32}_8.table, group 1"

TABLES = (
    Series(
        "all_gather", 1, 8,
        (.0495, .0716, .1138, .1953, .3584, .6846, 1.3371, 2.642, 5.2518, 10.4714, 20.9105, 41.7888), _WITHIN,
    ),
    Series(
        "reduce_scatter", 1, 8,
        (.0173, .0238, .0368, .0495, .0716, .1138, .1953, .3584, .6846, 1.3371, 2.642, 5.2518), _WITHIN,
    ),
    Series(
        "all_reduce", 1, 8,
        (.028, .041, .0628, .0849, .1292, .2179, .3822, .7084, 1.3609, 2.6658, 5.2756, 10.4952), _WITHIN,
    ),
    Series(
        "all_gather", 8, 1,
        (.2397, .4059, .7181, 1.3297, 2.5531, 4.9998, 9.8931, 19.6798, 39.2532, 78.4001, 156.694, 313.281),
        "colls8_8.table, group 0",
    ),
    Series(
        "reduce_scatter", 8, 1,
        (.0866, .1151, .1566, .2397, .4059, .7181, 1.3297, 2.5531, 4.9998, 9.8931, 19.6798, 39.2532),
        "colls8_8.table, group 0",
    ),
    Series(
        "all_gather", 16, 1,
        (.4977, .8538, 1.5291, 2.8398, 5.4613, 10.7042, 21.1899, 42.1614, 84.1045, 167.9904, 335.763, 671.3073),
        "colls16_8.table, group 0",
    ),
    Series(
        "reduce_scatter", 16, 1,
        (.1282, .1638, .2247, .3136, .4858, .8166, 1.4697, 2.7525, 5.2865, 10.3546, 20.4909, 40.7633),
        "colls16_8.table, group 0",
    ),
    Series(
        "all_gather", 32, 1,
        (1.0136, 1.7497, 3.1512, 5.86, 11.2777, 22.113, 43.7835, 87.1247, 173.807, 347.171, 693.901, 1387.36),
        "colls32_8.table, group 0",
    ),
    Series(
        "reduce_scatter", 32, 1,
        (.2114, .2612, .3608, .4615, .6455, 1.0136, 1.7497, 3.1512, 5.86, 11.2777, 22.113, 43.7835),
        "colls32_8.table, group 0",
    ),
)  # fmt: skip
"""Times of the tables. `colls64_1.table` is left out: it is a line for each collective, the same for all_gather and
reduce_scatter of operands of one size, though an all-gather of that size sends 64 times as much."""

_LOGGED: dict[tuple[str, int, int], tuple[tuple[float, float], ...]] = {
    ("all_gather", 2, 8): ((23.3, 41.6), (44.6, 313.2), (70.0, 409.6)),
    ("all_gather", 4, 2): ((18.7, 23.3), (33.6, 100.9), (64.0, 109.7)),
    ("all_gather", 8, 8): ((81.5, 20.7), (148.4, 298.3), (296.8, 390.1)),
    ("all_gather", 16, 1): ((81.6, 21.8), (141.5, 47.1), (218.4, 51.2)),
    ("all_gather", 16, 4): ((95.1, 20.7), (165.2, 179.4), (381.6, 195.0)),
    ("all_gather", 16, 8): ((159.1, 20.6), (286.8, 295.9), (599.2, 387.0)),
    ("all_reduce", 8, 1): (
        (76.6, 11.7), (133.0, 25.2), (204.4, 27.4), (36.8, 4.9), (65.0, 17.6), (92.4, 18.8),
    ),
    ("all_reduce", 16, 1): (
        (156.6, 10.9), (269.0, 23.6), (428.4, 25.6), (46.8, 4.9), (82.0, 17.6), (120.4, 18.8),
    ),
    ("all_reduce", 16, 8): (
        (311.6, 10.3), (559.6, 148.0), (1190.0, 193.5), (55.2, 8.7), (99.5, 98.6), (176.4, 122.4), (137.0, 160.0),
    ),
}  # fmt: skip
"""(collective, nodes, ranks per node) → microseconds of latency, and GB/s of the whole tensor: of a ring with LL, LL128
and Simple, then of a tree with the same, then of a tree over NVLS."""


def logged() -> Iterator[Series]:
    """Yield the times that follow from what NCCL logs."""
    for (kind, nodes, ranks_per_node), lines in _LOGGED.items():
        whole = nodes * ranks_per_node if kind == "all_gather" else 1
        times = [min(latency / 1e3 + whole * size / bandwidth / 1e6 for latency, bandwidth in lines) for size in SIZES]
        yield Series(kind, nodes, ranks_per_node, tuple(times), "NCCL 2.27.5 log", is_required=False)


def modelled(series: Series, size: int, topology: Topology = H100X8) -> float:
    """Return the modelled milliseconds of a collective whose operand has `size` bytes."""
    group = series.group
    target = {"all_gather": size * group, "reduce_scatter": size / group, "all_reduce": size}[series.kind]
    sizes = Sizes(group, size, target, dim=None if series.kind == "all_reduce" else 0)
    return 1e3 * cost(collective(series.kind).traffic, sizes, series.nodes, topology).seconds


def ratios(series: Series) -> list[float]:
    """Return the modelled time over the published time, for each size."""
    return [modelled(series, size) / time for size, time in zip(SIZES, series.milliseconds, strict=True)]


def error(series: Series) -> float:
    """Return the largest relative error over all sizes."""
    return max(abs(ratio - 1) for ratio in ratios(series))


def print_series(series: Series) -> None:
    """Print the published and the modelled time of each size, and their ratio."""
    print(f"\n{series}, {series.source}")
    print(f"  {'MiB':>5} {'published ms':>13} {'modelled ms':>12} {'ratio':>6}")
    for size, published, ratio in zip(SIZES, series.milliseconds, ratios(series), strict=True):
        print(f"  {size // MIB:>5} {published:>13.4f} {published * ratio:>12.4f} {ratio:>6.2f}")


def provenance() -> str:
    """Return the commit of the source tree, and the machine."""
    folder = Path(__file__).parent
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    return f"commit {git.stdout.strip() or 'unknown'}, {platform.machine()}, Python {platform.python_version()}"


def rows(all_series: Sequence[Series]) -> list[Row]:
    """Return the largest error of each series."""
    found = []
    for series in all_series:
        values = ratios(series)
        worst = max(values, key=lambda ratio: abs(ratio - 1))
        detail = f"at {SIZES[values.index(worst)] // MIB} MiB: {worst:.2f} of the published time; {series.source}"
        target = TOLERANCE if series.is_required else None
        found.append(Row(str(series), abs(worst - 1), target, form="{:.1%}", detail=detail))
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sizes", action="store_true", help="print the time of each size")
    given = parser.parse_args()
    every = [*TABLES, *logged()]
    print(f"Modelled times on {H100X8} ({provenance()})")
    for series in every if given.sizes else ():
        print_series(series)
    print_table("Largest error, 1 MiB to 2 GiB", rows(every))
    assert not any(math.isnan(error(series)) for series in every)


if __name__ == "__main__":
    main()
