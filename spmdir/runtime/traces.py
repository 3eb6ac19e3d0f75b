"""The traces of a model or a step: one for the examples, and others for calls with sizes that need a separate trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from torch import Tensor

from spmdir.runtime.call_guards import CallGuards
from spmdir.runtime.capture import Convention
from spmdir.runtime.dynamic_dims import Fixed
from spmdir.runtime.rank_programs import RankGraph, RankPrograms
from spmdir.runtime.signature import Signature


@attrs.frozen(eq=False, kw_only=True)
class Trace:
    """The programs of one trace on this rank.

    Attributes:
        programs: the programs for each choice of symbolic sizes.
        signature: the arguments and results of the program.
        convention: the calling convention.
        guards: the Python state that the trace read.
        constants: name → shard of a constant of this trace. All traces share the state.
    """

    programs: RankPrograms[RankGraph]
    signature: Signature
    convention: Convention
    guards: CallGuards
    constants: Mapping[str, Tensor]


@attrs.frozen(eq=False)
class Traces:
    """The traces of a program, by the dynamic dimensions that are numbers in them.

    Attributes:
        first: the trace for the example arguments.
        find_fixed: returns the dynamic dimensions that must be numbers in a call with these arguments.
        trace: traces the program again for a call; all ranks must call it.
        traces: dimensions that are numbers → trace.
    """

    first: Trace
    find_fixed: Callable[[tuple[Any, ...]], Fixed]
    trace: Callable[[Fixed, tuple[Any, ...]], Trace]
    traces: dict[Fixed, Trace]

    def find_fixed_dims(self, args: tuple[Any, ...]) -> Fixed:
        """Return the dynamic dimensions that must be numbers in a call.

        Raises:
            SpmdirError: the structure of the arguments differs from the examples, or a size is out of its range.
        """
        self.first.convention.tensors(args)
        return self.find_fixed(args)

    def trace_for(self, fixed: Fixed, args: tuple[Any, ...]) -> Trace:
        """Return the trace for a call, and make it if there is none; all ranks must call this.

        Args:
            fixed: the result of `find_fixed_dims` for `args`.
        """
        if fixed not in self.traces:
            self.traces[fixed] = self.trace(fixed, args)
        return self.traces[fixed]


def trace_again(fixed: Fixed, args: tuple[Any, ...]) -> Trace:
    """Raise AssertionError: a program with one trace is never traced again."""
    raise AssertionError("the sizes of a program without dynamic dimensions do not change")
