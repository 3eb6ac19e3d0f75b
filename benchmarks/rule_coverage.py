"""How many right strategies our rules and DTensor's offer, and how often each answers with a wrong number.

Every assignment of placements to the operands of torch's own sample calls, or of ours where it has none, is tried by
running the op on shards, on 2 and 3 ranks, with NaN and infinities too. Of those that give the right results, a rule
set offers some; where DTensor's propagator asks for no redistribution it answers, and an answer that is not what the
ranks hold is a silent error. Assignments that need other ops on each rank, such as masked lookups, are not counted for
either. Where DTensor may run something else than the op, its answers are not judged.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.measure import options
from spmdir.checking.rules.check_rules import captured_calls
from spmdir.checking.rules.pool import Death, pool
from spmdir.checking.rules.worker import Session as CheckSession
from spmdir.checking.rules.worker_options import Setup
from spmdir.core.placement.standard import Partial, Placement, R, Shard
from spmdir.rules.rule_set import default
from spmdir.torch_interop.schemas import torch_op

COMMON = """
    add.Tensor mul.Tensor div.Tensor maximum neg exp relu gelu where.self _to_copy
    mm bmm addmm baddbmm mv dot addmv
    sum.dim_IntList mean.dim amax amin prod.dim_int any.dim var.correction linalg_vector_norm
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax
    view permute transpose.int expand unsqueeze cat stack slice.Tensor select.int split.Tensor
    index.Tensor index_put gather scatter.src scatter_add index_select index_add embedding
    sort topk cumsum cumprod argmax bucketize.Tensor searchsorted.Tensor kthvalue
    full_like zeros_like new_zeros new_ones fill.Scalar
    native_layer_norm native_layer_norm_backward _fused_rms_norm native_group_norm native_batch_norm
    convolution convolution_backward
    max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d col2im im2col
    mse_loss nll_loss_forward nll_loss_backward huber_loss binary_cross_entropy soft_margin_loss
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_flash_attention_for_cpu
    native_dropout native_dropout_backward
    linalg_inv_ex linalg_cholesky_ex linalg_solve_triangular _linalg_det linalg_qr cholesky_solve
    _fft_c2c _fft_r2c _fft_c2r
"""
"""What models are made of, family by family."""

COUNTS = (2, 3)
SECONDS_OF_A_CALL = 30.0
ASSIGNMENTS = 1000
"""How many are tried of one call; of more, a random choice."""

NAMES = ("ours", "DTensor")
COLUMNS = ("ops", "valid", *NAMES, *(f"{name} {how}" for name in NAMES for how in ("wrong", "wrong at inf")))
OPERATIONS = {"any": "bor", "all": "band"}
"""Our pending reductions of truth values → DTensor's."""


class Session(CheckSession):
    """A worker that also counts what is offered."""

    def count(self, data: bytes) -> tuple[Counter[str], list[str]]:
        sample = pickle.loads(data)
        self.say(f"counting {sample.op}")
        return count_offers(sample, self.rules)


def count_offers(sample: Any, rules: Any) -> tuple[Counter[str], list[str]]:
    """COLUMNS of one sample, and what only DTensor offers or we have wrong; nothing of one that cannot be judged."""
    import torch

    from spmdir.checking.rules.call_checks import check_in_all_trials, describe
    from spmdir.checking.rules.reasons import why_finite, why_undetermined
    from spmdir.checking.rules.sound_assignments import FAILURES, AssignmentTrial
    from spmdir.checking.rules.soundness import call_of
    from spmdir.checking.rules.values import special_variants
    from spmdir.core.errors import SpmdirError

    target = torch_op(sample.op)
    given = {argument.name: argument.default_value for argument in target._schema.arguments} | sample.arguments
    draws = torch.Tag.nondeterministic_seeded in target.tags and given.get("dropout_p") != 0
    if draws or not sample.compare or why_undetermined(sample.op):
        return Counter(), []
    try:
        call, operands, expected = call_of(sample)
        rule = rules.instantiate(call)
    except (SpmdirError, *FAILURES):
        return Counter(), []
    if max((t.numel() for t in operands), default=0) < 2 or all(
        right is None or not right.numel() for right in expected
    ):
        return Counter(), []
    sized = rule.shape_arguments if rule else ()
    trials = [AssignmentTrial(call, operands, expected, sized)]
    for _, variant in () if why_finite(sample.op) else special_variants(sample):
        with suppress(*FAILURES):
            _, inputs, outputs = call_of(variant)
            trials.append(AssignmentTrial(call, inputs, outputs, sized))
    ours = [{row.operands: row for row in rule.strategies(n)} for n in COUNTS] if rule else []
    theirs, ignored = DTensorRules(call, operands), trials[0].ignored_operands()
    found: Counter[str] = Counter()
    notes: list[str] = []
    for placed in trials[0].assignments(ASSIGNMENTS):
        if all(p == R for p in placed) or any(placed[i].trait == "partial" for i in ignored):
            continue
        possible = check_in_all_trials(trials, placed)
        rows = [of_count.get(placed) for of_count in ours]
        plain = [row and not row.rewrite and row.results for row in rows]
        claims = theirs.claims(placed)
        if possible:
            offered = {
                "ours": bool(rows) and all(rows),
                "DTensor": all(c is not None and _fits(c, possible.results) for c in claims),
            }
            found.update(valid=1, **{name: int(offers) for name, offers in offered.items()})
            if not offered["ours"]:
                who = "only DTensor offers" if offered["DTensor"] else "nobody offers"
                notes.append(f"{sample.op}: {who} {possible}; {describe(sample)}")
        for name, answers in (("ours", plain), ("DTensor", () if theirs.handled else claims)):
            wrong = _wrong(trials, placed, answers)
            found[f"{name} {wrong}"] += bool(wrong)
            if wrong:
                notes.append(f"{sample.op}: {name} {wrong}: ({', '.join(map(str, placed))}); {describe(sample)}")
    return +found, notes


def _wrong(trials: Sequence[Any], placed: tuple[Placement, ...], answers: Sequence[Any]) -> str:
    """Return whether an answer is wrong for finite numbers, or only for NaN and infinities; "" if it is right."""
    for name, trials_of_kind in (("wrong", trials[:1]), ("wrong at inf", trials[1:])):
        for trial in trials_of_kind:
            if any(
                results and _contradicts(trial, placed, results, count)
                for count, results in zip(COUNTS, answers, strict=False)
            ):
                return name
    return ""


def _contradicts(trial: Any, operands: tuple[Placement, ...], results: Sequence[Placement | None], count: int) -> bool:
    """Return whether the op runs on the shards of `count` ranks, but not with results in these placements."""
    from spmdir.checking.rules.sound_assignments import is_placement_of

    first = results[0]
    sizes_placement = first if trial.size_arguments and first is not None and first.dim is not None else R
    results_of_ranks = trial.run(operands, count, 0, sizes_placement)
    through_sums = any(placement.op in ("sum", "avg") for placement in operands)
    return results_of_ranks is not None and not all(
        expected is None
        or placement is None
        or is_placement_of(placement, [of_rank[index] for of_rank in results_of_ranks], expected, through_sums)
        for index, (placement, expected) in enumerate(zip(results, trial.expected, strict=False))
    )


def _fits(claim: Sequence[Placement | None], results: Sequence[Sequence[Placement]]) -> bool:
    return all(not right or c in right or (c is not None and c.op == "avg" and R in right)
               for c, right in zip(claim, results, strict=False))  # fmt: skip


class DTensorRules:
    """What DTensor's sharding propagator says of one call, for meshes of COUNTS ranks.

    Attributes:
        handled: whether DTensor may run something else than the op, such as an exchange of borders.
    """

    def __init__(self, call: Any, operands: Sequence[Any]):
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not dist.is_initialized():
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=max(COUNTS))
        self._meshes = _meshes.get("all") or [DeviceMesh("cpu", torch.arange(n), _init_backend=False) for n in COUNTS]
        _meshes["all"] = self._meshes
        self._call, self._operands = call, operands
        dispatcher: Any = DTensor._op_dispatcher  # type: ignore[attr-defined]
        self._propagator = dispatcher.sharding_propagator
        self.handled = torch_op(call.name) in getattr(dispatcher, "_custom_op_handlers", {})

    def claims(self, placed: Sequence[Placement]) -> list[tuple[Placement | None, ...] | None]:
        """Per number of ranks, where the results lie if DTensor runs the op on these operands as they are, or None."""
        found: list[tuple[Placement | None, ...] | None] = []
        for mesh in self._meshes:
            found.append(None if found and found[-1] is None else self._claim(mesh, placed))
        return found

    def _claim(self, mesh: Any, placed: Sequence[Placement]) -> tuple[Placement | None, ...] | None:
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
        from torch.distributed.tensor._op_schema import OpSchema

        from spmdir.checking.rules.soundness import bind_arguments

        target = torch_op(self._call.name)
        specs = [
            DTensorSpec(mesh, (_theirs(p),), TensorMeta(t.shape, t.stride(), t.dtype))
            for p, t in zip(placed, self._operands, strict=True)
        ]
        positional, named = bind_arguments(target, self._call.slots, specs, self._call.argument)
        positional, named = _with_lists(positional), _with_lists(named)
        schema = OpSchema(target, tuple(positional), named, self._propagator.op_to_schema_info.get(target))
        try:
            answer = self._propagator.propagate_op_sharding_non_cached(schema)
        except Exception:
            return None
        if answer.needs_redistribute or answer.output_spec is None:
            return None
        specs = answer.output_spec if isinstance(answer.output_spec, (list, tuple)) else [answer.output_spec]
        return tuple(None if spec is None else _ours(spec.placements[0]) for spec in specs)


def _with_lists(value: Any) -> Any:
    """Tuples as lists, as dispatch hands them to DTensor."""
    if isinstance(value, dict):
        return {key: _with_lists(one) for key, one in value.items()}
    return [_with_lists(one) for one in value] if type(value) in (list, tuple) else value


_meshes: dict[str, list[Any]] = {}


def _theirs(placement: Placement) -> Any:
    from torch.distributed import tensor

    if placement.trait == "partial":
        return tensor.Partial(OPERATIONS.get(placement.op or "", placement.op or "sum"))
    return tensor.Replicate() if placement.dim is None else tensor.Shard(placement.dim)


def _ours(placement: Any) -> Placement | None:
    """None for placements that only DTensor has."""
    if placement.is_replicate():
        return R
    if type(placement).__name__ == "Shard":
        return Shard(placement.dim)
    names = {theirs: ours for ours, theirs in OPERATIONS.items()}
    if type(placement).__name__ == "Partial":
        operation: str = placement.reduce_op
        return Partial(names.get(operation, operation))
    return None


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ops", nargs="+", help="names of ops, such as aten.mm; default: all that OpInfos call")
    parser.add_argument("--common", action="store_true", help="those that models are made of")
    parser.add_argument("--limit", type=int, default=2, help="sample calls of an op (default 2)")
    parser.add_argument("--each", type=int, help="ops of a family, spread over their names (default: all)")
    parser.add_argument("--details", action="store_true", help="print each op, what only DTensor offers, what is wrong")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.common:
        arguments.ops = [f"aten.{name}" for name in COMMON.split()]
    with pool(Setup(), arguments.processes, "benchmarks.rule_coverage_worker") as ask:
        calls, notes = captured_calls(ask, arguments.ops)
        calls = {**packaged_calls(arguments.ops), **calls}
        ops = spread(sorted(op for op in calls if comparable(op)), arguments.each)
        jobs = [("count", data) for op in ops for data in telling_first(calls[op])[: arguments.limit]]
        of_jobs = [op for op in ops for _ in calls[op][: arguments.limit]]
        answers = list(ask(jobs, SECONDS_OF_A_CALL))
    by_op: dict[str, Counter[str]] = {op: Counter(ops=1) for op in ops}
    for op, answer in zip(of_jobs, answers, strict=True):
        counts, of_call = (Counter(), [f"{op}: {answer}"]) if isinstance(answer, Death) else answer
        by_op[op].update(counts)
        notes += of_call
    by_family: dict[str, Counter[str]] = {}
    for op, counts in by_op.items():
        for family in (_family(op), "total"):
            by_family.setdefault(family, Counter()).update(counts)
    by_family["total"] = by_family.pop("total", Counter())
    if arguments.details:
        print_coverage(by_op, print)
        print(*dict.fromkeys(notes), sep="\n")
    print_coverage(by_family, print)


def packaged_calls(wanted: Sequence[str] | None) -> dict[str, list[bytes]]:
    """Op → our own sample calls, for ops that no OpInfo calls."""
    from spmdir.checking.rules.samples import all_samples

    calls: dict[str, list[bytes]] = {}
    for sample in all_samples(default()):
        # torch cannot pickle the narrowest floating types.
        picklable = not any("float8" in str(t.dtype) for t in _tensors(sample))
        if picklable and sample.op.startswith("aten.") and (wanted is None or sample.op in wanted):
            calls.setdefault(sample.op, []).append(pickle.dumps(sample))
    return calls


def telling_first(calls: Sequence[bytes]) -> list[bytes]:
    """Calls with an operand of two dimensions or more first: of numbers all strategies are alike."""
    return sorted(calls, key=lambda data: all(sum(n > 1 for n in t.shape) < 2 for t in _tensors(pickle.loads(data))))


def _tensors(sample: Any) -> list[Any]:
    operands = [o for operand in sample.operands for o in (operand if isinstance(operand, list) else [operand])]
    return [operand for operand in operands if hasattr(operand, "shape")]


def spread(ops: Sequence[str], each: int | None) -> list[str]:
    """At most `each` ops of a family, evenly spread over those that have rules."""
    if each is None:
        return list(ops)
    families: dict[str, list[str]] = {}
    for op in ops:
        if op in default().records:
            families.setdefault(_family(op), []).append(op)
    return [op for of in families.values() for op in of[:: -(-len(of) // each)]]


def comparable(op: str) -> bool:
    """Whether DTensor sees the op: composite ones reach it in pieces."""
    import torch

    name = torch_op(op).name()
    return not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _family(op: str) -> str:
    records = default().records
    return records[op][0].file.removesuffix(".rules") if op in records else "(no rule here)"


def print_coverage(by_family: dict[str, Counter[str]], show: Callable[[str], Any]) -> None:
    """Print a line a family: what is valid, the shares that are offered, and the wrong answers."""
    width = max(map(len, by_family))
    widths = [max(10, len(name)) for name in COLUMNS]
    show("  ".join(["family".ljust(width), *(name.rjust(w) for name, w in zip(COLUMNS, widths, strict=True))]))
    for family, found in by_family.items():
        shares = [f"{found[name]} {found[name] / max(1, found['valid']):4.0%}" for name in NAMES]
        cells = [found["ops"], found["valid"], *shares, *(found[name] for name in COLUMNS[4:])]
        show("  ".join([family.ljust(width), *(str(cell).rjust(w) for cell, w in zip(cells, widths, strict=True))]))


if __name__ == "__main__":
    main()
