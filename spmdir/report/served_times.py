"""The time of the programs of a served model with its lower bound, and the tokens of caches that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from spmdir.core.arguments import INTEGER, accepts
from spmdir.core.byte_size import size_text
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.html_text import ShownAsText
from spmdir.core.time_text import time_text
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.report.op_sums import table

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp

    from spmdir.core.mesh import Mesh


@attrs.frozen
class ProgramTime:
    """The modelled time of a call of a program, and its lower bounds.

    Attributes:
        name: the name of the function.
        sequences, tokens: the number of sequences of a call, and of new tokens of each.
        seconds: the modelled time of a call.
        bounds: resource → the least seconds that a rank uses it: "memory" reads parameters and live rows of caches
            once, "compute" is the floating-point operations at the peak, "network" is the fewest bytes of collectives.
        peak_bytes: the peak of live memory of a rank.
    """

    name: str
    sequences: int
    tokens: int
    seconds: float
    bounds: Mapping[str, float]
    peak_bytes: float

    @property
    def bound(self) -> float:
        """The least seconds of a call: the largest of the bounds, since resources may be used at the same time."""
        return max(self.bounds.values())

    @property
    def token_seconds(self) -> float:
        """The modelled seconds of each new token."""
        return self.seconds / (self.sequences * self.tokens)


@attrs.frozen
class ServingReport(ShownAsText):
    """The times of the programs of a served model, and the memory of its caches. All bytes are those of a rank.

    Attributes:
        programs: the times, in the order of the text; none if the programs have no caches.
        length: the assumed number of live rows of each sequence.
        parameter_bytes: the bytes of parameters and buffers.
        token_bytes: the bytes of caches for each token, averaged over all tokens that the caches hold.
        capacity: the number of tokens that the caches hold, of all sequences together.
        memory: the memory limit; infinite if unknown.
    """

    programs: tuple[ProgramTime, ...]
    length: int
    parameter_bytes: float
    token_bytes: float
    capacity: int
    memory: float

    @property
    def fitting_tokens(self) -> float:
        """The number of tokens of caches that fit in memory after parameters and the largest peak."""
        peak = max((program.peak_bytes for program in self.programs), default=0.0)
        free = self.memory - (peak - self.capacity * self.token_bytes)
        return math.inf if math.isinf(free) or not self.token_bytes else max(free // self.token_bytes, 0.0)

    def __str__(self) -> str:
        """Return the table of programs, then the memory."""
        if not self.programs:
            return "the program has no caches"
        rows: list[tuple[str, ...]] = [
            ("program", "sequences", "tokens", "modelled", "of a token", "bound", "by", "ratio")
        ]
        for program in self.programs:
            by = max(program.bounds, key=lambda resource: program.bounds[resource])
            ratio = f"{program.seconds / program.bound:.2f}x" if program.bound else "-"
            times = [time_text(seconds) for seconds in (program.seconds, program.token_seconds, program.bound)]
            rows.append((program.name, str(program.sequences), str(program.tokens), *times, by, ratio))
        fitting = self.fitting_tokens
        fits = "any number of tokens fits" if math.isinf(fitting) else f"{fitting:.0f} tokens fit"
        limit = "unlimited memory" if math.isinf(self.memory) else size_text(self.memory)
        return "\n".join(
            [
                *table(rows, range(1, 6)),
                f"with {self.length} live rows of each sequence; a rank has {limit}, and "
                f"{size_text(self.parameter_bytes)} of parameters",
                f"a token of the caches takes {size_text(self.token_bytes)} of a rank: {fits}, "
                f"and the caches hold {self.capacity}",
            ]
        )


@accepts(module=MODULE, pipeline=PIPELINE, length=INTEGER.optional)
def serving_report(
    module: ModuleOp, *, pipeline: Pipeline | str | None = None, length: int | None = None
) -> ServingReport:
    """Report the time of each program of a served model beside its lower bound, and how many tokens of caches fit.

    Times and memory are those of the machine that `propagate` decided for.

    Args:
        module: the decided programs, such as `Served.module`, or those of `capture` after `propagate`.
        pipeline: the pipeline whose remaining passes run; the standard one if None.
        length: the live rows of each sequence in the caches; all rows if None.

    Raises:
        SpmdirError: the module is not decided, or its caches have fewer rows than `length`.

    Example:
        >>> print(spmdir.report.serving_report(served.module, pipeline=served.pipeline, length=1024))
    """
    from spmdir.dialects import ir
    from spmdir.dialects.attributes import meta_of
    from spmdir.dialects.caches import CACHE_KIND
    from spmdir.dialects.values import signature_kind, signature_name
    from spmdir.pipeline.recorded_options import machine_of
    from spmdir.report.communication import comm_report
    from spmdir.report.memory import memory_report
    from spmdir.serving.programs import program_of

    pipeline, mesh = as_pipeline(pipeline), ir.mesh(module)
    first = ir.functions(module)[0]
    caches = [meta_of(arg.type) for arg in first.args if signature_kind(first, "arg_attrs", arg.index) == CACHE_KIND]
    if not caches or caches[0] is None:
        return ServingReport((), 0, _argument_bytes(first, mesh, is_cache=False), 0.0, 0, math.inf)
    pages, page_rows, *_ = caches[0].shape
    length = page_rows if length is None else length
    if not 1 <= length <= page_rows:
        raise SpmdirError(f"length is {length}; expected 1 to {page_rows}, the rows of a sequence in the caches")
    times = []
    for function in ir.functions(module):
        name, program = function.sym_name.data, program_of(module, function.sym_name.data)
        costs = comm_report(program, pipeline=pipeline)
        if not costs.decided:
            raise UnsupportedError(f"@{name} is not decided; run propagate before the report")
        # The argument `ids` has the new tokens of all sequences.
        ids = next(arg for arg in function.args if signature_name(function, "arg_attrs", arg.index) == "ids")
        sequences, tokens = meta_of(ids.type).shape  # type: ignore[union-attr]
        topology = machine_of(function, pipeline).topology
        read = _argument_bytes(function, mesh, is_cache=False, is_read=True)
        # The estimate assumes a page for each sequence, of which `length` rows are live.
        live = _argument_bytes(function, mesh, is_cache=True) * length / page_rows * sequences / pages
        unit = str(caches[0].dtype)
        bounds = {
            "memory": (read + live) / topology.memory_bandwidth,
            "compute": sum(op.flops for op in costs.ops) / topology.peak(unit),
            "network": (costs.lower_bound or 0.0) / max(topology.intra_bandwidth, topology.inter_bandwidth),
        }
        peak = memory_report(program, pipeline=pipeline).peak_bytes
        times.append(ProgramTime(name, sequences, tokens, costs.objective or 0.0, bounds, peak))
    return ServingReport(
        programs=tuple(times),
        length=length,
        parameter_bytes=_argument_bytes(first, mesh, is_cache=False),
        token_bytes=_argument_bytes(first, mesh, is_cache=True) / (pages * page_rows),
        capacity=pages * page_rows,
        memory=machine_of(first, pipeline).memory,
    )


def _argument_bytes(function: FuncOp, mesh: Mesh, *, is_cache: bool, is_read: bool = False) -> float:
    """Return the bytes that the first rank has of the caches of a function, or of its parameters and buffers.

    Args:
        is_read: whether to leave out tables of which a call reads a few rows.
    """
    from spmdir.dialects.attributes import meta_of
    from spmdir.dialects.caches import CACHE_KIND
    from spmdir.dialects.values import sharding_of, signature_kind

    kinds = (CACHE_KIND,) if is_cache else ("parameter", "buffer")
    size = 0.0
    for argument in function.args:
        if signature_kind(function, "arg_attrs", argument.index) not in kinds:
            continue
        if is_read and all(use.operation.name == "aten.embedding" for use in argument.uses):
            continue
        meta, sharding = meta_of(argument.type), sharding_of(argument)
        assert meta is not None
        local = meta if sharding is None else sharding.local_type(meta, mesh, mesh.coordinate(0))
        size += local.bytes
    return size
