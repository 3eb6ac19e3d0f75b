"""The load of experts: the rows that a rank receives, as far as they are known before the program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from spmdir.core.arguments import accepts
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.html_text import ShownAsText
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


@attrs.frozen
class RouterLoad:
    """The rows of equal routers. A row is a (token, expert) pair.

    Attributes:
        name: the value with the order of the rows, of the first of these routers.
        count: the number of equal routers.
        axes: the mesh axes over which rows are dispatched; empty if each rank computes with all experts.
        ranks: the number of ranks of these axes.
        tokens: the number of tokens of these ranks together.
        experts, chosen: the number of experts, and of those that each token goes to.
        imbalance: the assumed rows of the busiest rank, as a multiple of those with a balanced router.
    """

    name: str
    count: int
    axes: tuple[str, ...]
    ranks: int
    tokens: int
    experts: int
    chosen: int
    imbalance: float

    @property
    def balanced_rows(self) -> float:
        """Return the rows that each rank receives if the router is balanced."""
        return self.tokens * self.chosen / self.ranks

    @property
    def assumed_rows(self) -> float:
        """Return the rows that times and memory assume for the busiest rank."""
        return min(self.balanced_rows * self.imbalance, self.most_rows)

    @property
    def most_rows(self) -> float:
        """Return the most rows that a router can send to one rank: a token sends at most one to each of its experts."""
        return float(self.tokens * min(self.chosen, self.experts // self.ranks))


_HEADER = (
    "router",
    "count",
    "axes",
    "tokens",
    "experts",
    "chosen",
    "rows of an expert",
    "of a rank",
    "assumed",
    "at most",
)


@attrs.frozen
class ExpertReport(ShownAsText):
    """The load of the experts of a program, by router. Rows of an expert and of a rank are those of a balanced router.

    Attributes:
        routers: the loads, in program order.
    """

    routers: tuple[RouterLoad, ...]

    def __str__(self) -> str:
        """Return the table, with one line for each different router."""
        if not self.routers:
            return "the program has no experts that are recognised"
        rows = [
            (
                load.name,
                str(load.count),
                ", ".join(load.axes) or "-",
                str(load.tokens),
                str(load.experts),
                str(load.chosen),
                f"{load.tokens * load.chosen / load.experts:g}",
                f"{load.balanced_rows:g}",
                f"{load.assumed_rows:g}",
                f"{load.most_rows:g}",
            )
            for load in self.routers
        ]
        widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
        texts = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (_HEADER, *rows)]
        return "\n".join("  ".join(row).rstrip() for row in texts)


@accepts(module=MODULE, pipeline=PIPELINE)
def expert_report(module: ModuleOp, *, pipeline: Pipeline | str | None = None) -> ExpertReport:
    """Report the rows that ranks of experts receive, by router. Equal routers, such as those of layers, share a line.

    The rows that a router sends are data, so the report has those of a balanced router, those that `imbalance` of
    `propagate` assumes for the busiest rank, and the most that are possible.

    Args:
        module: a program at any stage after import.
        pipeline: the pipeline whose remaining passes run; the standard one if None.

    Raises:
        SpmdirError: the module cannot be partitioned.

    Example:
        >>> print(spmdir.report.expert_report(module))
    """
    from spmdir.analysis.routes import routers
    from spmdir.dialects import ir
    from spmdir.pipeline.recorded_options import imbalance_of
    from spmdir.pipeline.remaining_passes import bind_examples, localize

    pipeline = as_pipeline(pipeline)
    with collector_paused(), pipeline.rules:
        module = localize(bind_examples(module, pipeline), pipeline)
        function, mesh = ir.main_function(module), ir.mesh(module)
        imbalance = imbalance_of(function, pipeline)
        loads: dict[RouterLoad, list[str]] = {}
        for router in routers(function, mesh):
            sizes = router.tokens, router.experts, router.chosen
            load = RouterLoad("", 1, router.axes, mesh.group_size(router.axes), *sizes, imbalance)
            loads.setdefault(load, []).append(router.name)
    return ExpertReport(tuple(attrs.evolve(load, name=names[0], count=len(names)) for load, names in loads.items()))
