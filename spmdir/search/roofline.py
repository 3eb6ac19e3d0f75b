"""The arithmetic and memory traffic of an op, and its roofline time on a topology.

The roofline time is the time of kernel launches, plus the longer of arithmetic and memory traffic. Source: S. Williams,
A. Waterman and D. Patterson, "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.measured_times import Measured
from spmdir.reshard.topology import VECTOR, Topology


@attrs.frozen(cache_hash=True)
class Work:
    """The arithmetic and memory traffic of one op, on global tensors or on those of one rank.

    Attributes:
        flops: the number of floating-point operations.
        unit: the unit that does these operations, a key of `Topology.peak_flops`.
        operand_bytes, result_bytes: bytes that are read of each operand and written of each result. They are 0 for a
            tensor that stays inside a kernel of several elementwise ops, and for views.
        launches: the number of kernels.
        is_contraction: as `RuleInstance.is_contraction`.
        op, operands, arguments: the name of the op, the types of its operands and the text of its literals, to find
            measured times. `op` is empty if times are not measured.
    """

    flops: float = 0.0
    unit: str = VECTOR
    operand_bytes: tuple[float, ...] = ()
    result_bytes: tuple[float, ...] = ()
    launches: float = 0.0
    is_contraction: bool = False
    op: str = ""
    operands: tuple[TensorMeta, ...] = ()
    arguments: str = "{}"

    def time(self, topology: Topology) -> Measured:
        """Return the measured time of an op on one rank, or its roofline time if it was not measured."""
        if topology.costs is not None and self.op:
            measured = topology.costs.op(self.op, self.operands, self.arguments)
            if measured is not None:
                return measured
        return Measured(self.seconds(topology), topology.name)

    def seconds(self, topology: Topology) -> float:
        """Return the modelled time on one rank: launches, and the longer of arithmetic and memory traffic."""
        launches, arithmetic, traffic = self.terms(topology)
        return launches + max(arithmetic, traffic)

    def bound(self, topology: Topology) -> str:
        """Return which part of the modelled time is longest: "launch", "compute" or "memory". The first wins a tie."""
        terms = dict(zip(("launch", "compute", "memory"), self.terms(topology), strict=True))
        return max(terms, key=terms.__getitem__)

    @property
    def traffic(self) -> float:
        """Return the bytes that are read and written."""
        return sum(self.operand_bytes) + sum(self.result_bytes)

    def terms(
        self,
        topology: Topology,
        compute_fraction: Any = 1.0,
        operand_fractions: Sequence[Any] = (),
        result_fractions: Sequence[Any] = (),
    ) -> tuple[float, Any, Any]:
        """Return the times of launches, arithmetic and memory traffic on one rank.

        Fractions may be arrays, one number for each of several decisions. Then the times that depend on them are arrays
        too.

        Args:
            compute_fraction: the fraction of the arithmetic that the rank does.
            operand_fractions, result_fractions: for each operand or result, the fraction of its bytes that the rank
                has; 1 for all if empty.

        Returns: three times in seconds.
        """
        traffic = _local_bytes(self.operand_bytes, operand_fractions) + _local_bytes(
            self.result_bytes, result_fractions
        )
        arithmetic = self.flops * compute_fraction / topology.peak(self.unit)
        return self.launches * topology.launch_latency, arithmetic, traffic / topology.memory_bandwidth


def _local_bytes(sizes: Sequence[float], fractions: Sequence[Any]) -> Any:
    """Return the bytes of tensors on one rank, which has a fraction of each; of whole tensors if `fractions` is empty.

    Args:
        sizes: the bytes of each tensor.
    """
    if not fractions:
        return sum(sizes)
    return sum([size * fraction for size, fraction in zip(sizes, fractions, strict=True)])


NO_WORK = Work()
"""The work of a node that computes nothing."""


def input_work(meta: TensorMeta) -> Work:
    """Return the work of an input: each element is written once. So a shard of the input costs less than all of it."""
    return Work(meta.numel, VECTOR, (), (meta.bytes,))
