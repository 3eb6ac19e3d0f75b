"""Ops with several names: a strategy written as text for one name also applies to the others.

`torch.export` keeps `aten.scaled_dot_product_attention`. A trace with gradients has the kernel instead, which also
returns the logarithms of the sums. A strategy for the kernel

    aten._scaled_dot_product_flash_attention_for_cpu: (shard(l), R, R) -> (shard(l), shard(l))
        local
        …
        return out, lse

applies to `aten.scaled_dot_product_attention` as

    aten.scaled_dot_product_attention: (shard(l), R, R) -> (shard(l))
        when rank(query) == 4 and …
        local
        …
        return out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from spmdir.core.brackets import scan_balanced, split_entries
from spmdir.rules.language.records import Record, Records
from spmdir.rules.language.syntax_tree import Statement, TextStrategy

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
ATTENTION = "aten.scaled_dot_product_attention"


@attrs.frozen
class Equivalent:
    """Another name for an op, called the first op below.

    Attributes:
        op: the other name. Its parameters have the same names.
        results: how many of the first op's results the other op returns, counted from result 0; None for all.
        when: the condition on its calls, as in the `when` of a strategy; "" for none.
        whole: the factors of the other op's rule that must stay unsharded, because the first op's rule lacks them.
    """

    op: str
    results: int | None = None
    when: str = ""
    whole: tuple[str, ...] = ()


ALIASES = (
    ("aten.cat", "aten.concat", "aten.concatenate"),
    ("aten.chunk", "aten.unsafe_chunk"),
    ("aten.split.Tensor", "aten.unsafe_split.Tensor"),
    ("aten.split_with_sizes", "aten.unsafe_split_with_sizes"),
)
"""Names of one op with one signature."""

EQUIVALENT: dict[str, tuple[Equivalent, ...]] = {
    FLASH: (
        Equivalent(
            ATTENTION,
            1,
            "rank(query) == 4 and rank(key) == 4 and last(query) == last(value) and given(attn_mask) == false",
            ("v",),
        ),
    ),
    **{op: tuple(Equivalent(name) for name in names if name != op) for names in ALIASES for op in names},
}
"""Op → its other names. Its strategies apply to them, unless the same file has strategies for that name."""

SAME = (
    frozenset([
        ATTENTION, FLASH, "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_attention_math",
    ]),
)  # fmt: skip
"""Sets of names of one op. If EQUIVALENT does not connect two names of a set, a warning reports it."""


def other_names(ops: Iterable[str]) -> Iterator[str]:
    """Yield `ops`, and the other names that their strategies apply to."""
    for op in ops:
        yield op
        yield from (equivalent.op for equivalent in EQUIVALENT.get(op, ()))


def derived_records(op: str, records: Records) -> Iterator[tuple[Record, Equivalent]]:
    """Yield the strategies among `records` for other names of `op`, rewritten as strategies of `op`.

    The name in the text is replaced, and the condition under which both ops are equal is added as a `when` line. Files
    that declare strategies of `op` itself are skipped.
    """
    files_with_op = {record.file for record in records.get(op, ())}
    for source, equivalents in EQUIVALENT.items():
        source_records = [record for record in records.get(source, ()) if record.file not in files_with_op]
        for equivalent in equivalents:
            if equivalent.op != op:
                continue
            for record in source_records:
                text = record.text.replace(source, op, 1)
                text += f"\n{' ' * 8}when {equivalent.when}" if equivalent.when else ""
                yield attrs.evolve(record, text=text), equivalent


def derived_strategy(record: Record, equivalent: Equivalent, parse: Callable[[Record], TextStrategy]) -> TextStrategy:
    """Parse a record of `derived_records`, and drop the results that the op does not have.

    Args:
        equivalent: the name for which the strategy is derived, as `derived_records` yields it.
        parse: returns the strategy of a record.
    """
    strategy, count = attrs.evolve(parse(record), whole=equivalent.whole), equivalent.results
    if count is None:
        return strategy
    body: list[Statement] = []
    for statement in strategy.body:
        # Only a `return` has neither targets nor a ring.
        is_return = not statement.targets and not statement.ring
        body.append(attrs.evolve(statement, values=statement.values[:count]) if is_return else statement)
    text = _with_results(strategy.text, count)
    return attrs.evolve(strategy, text=text, results=strategy.results[:count], body=tuple(body))


def _with_results(text: str, count: int) -> str:
    """Return the text of a strategy, with the first `count` of its results.

    For example, `aten.x: (R) -> (R, S(0))` with 1 result is `aten.x: (R) -> (R)`.
    """
    start = text.index("(", text.index("->")) + 1
    end = scan_balanced(text, start - 1) - 1
    results = split_entries(text[start:end])[:count]
    return f"{text[:start]}{', '.join(results)}{text[end:]}"


def unreached_name(op: str, has_strategies: Callable[[str], bool]) -> str | None:
    """Return another name of `op` that has strategies, if `op` has none; else None."""
    names_of_op = sorted(name for names in SAME if op in names for name in names - {op})
    if not names_of_op or has_strategies(op):
        return None
    return next(filter(has_strategies, names_of_op), None)
