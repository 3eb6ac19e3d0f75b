"""The ops of local forms that exchange rows of experts between ranks, with their parameters."""

from __future__ import annotations

EXCHANGE_OPS: dict[str, tuple[tuple[str, bool], ...]] = {
    "spmd.exchange_counts": (("counts", True),),
    "spmd.exchange_rows": (("rows", True), ("sent", True), ("received", True)),
    "spmd.exchange_slots": (("slots", True),),
    "spmd.check_capacity": (("counts", True), ("capacity", False)),
}
"""Ops of local forms that exchange the rows of experts → (name, whether it is a tensor) of parameters."""
