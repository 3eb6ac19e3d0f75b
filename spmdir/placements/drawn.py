"""`Drawn(part)`: the candidates for the next token of each sequence, of which each rank has those of its vocabulary.

`sampling.draw` reduces the logits of a rank to candidates: values and tokens of shape [sequences, 2 + k]. So ranks
exchange 2 + k numbers for each sequence, and no logits. For k = 2, two ranks combine these candidates of a sequence:

    rank 0      total 1.0    score 0.7 of token 3    logits 0.2 0.1 of tokens 1 3
    rank 1      total 0.0    score 1.9 of token 5    logits 0.6 0.0 of tokens 4 5
    combined    total 1.3    score 1.9 of token 5    logits 0.6 0.2 of tokens 4 1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import DType
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Noise
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.packing import pack

NO_TOKEN = 2**62
"""The token of a candidate that is none, and the next token for logits that are not numbers."""


@attrs.frozen
class Drawn(PackedPlacement):
    """The candidates of `sampling.draw` for the vocabulary of a rank."""

    text: ClassVar[str] = "Drawn({part})"
    parts: ClassVar[tuple[str, ...]] = ("values", "tokens")
    offered: ClassVar[bool] = True
    splits: ClassVar[bool] = False  # candidates packed on one axis are bytes, which another axis cannot pack again
    part: int

    def supports(self, dtype: DType) -> bool:
        return dtype.name == ("i64" if self.part else "f32")

    def types(self, shape: tuple[int, ...], dtype: Any) -> Sequence[tuple[tuple[int, ...], Any]]:
        return [(shape, "f32"), (shape, "i64")]

    def slices(self, dim: int) -> bool:
        return dim == 0

    def identity(self, *like: Any) -> Sequence[Any]:
        values, tokens = like
        return values.new_full(values.shape, -float("inf")), tokens.new_full(tokens.shape, NO_TOKEN)

    def combine(self, left: Sequence[Any], right: Sequence[Any]) -> Sequence[Any]:
        """Return the candidates of both parts: the sum of totals, the largest score, and the k largest logits.

        Of two equal scores, the smaller token counts. A score of NaN has no token.
        """
        (values, tokens), (other_values, other_tokens) = left, right
        total = values[:, :1].logaddexp(other_values[:, :1])
        score, other_score = values[:, 1:2], other_values[:, 1:2]
        token, other_token = tokens[:, 1:2], other_tokens[:, 1:2]
        first = token.where(score > other_score, other_token)
        first = first.where(score != other_score, token.minimum(other_token))
        largest = score.maximum(other_score)
        first = first.masked_fill(largest.isnan(), NO_TOKEN)
        top, places = pack((values[:, 2:], other_values[:, 2:]), 1).topk(values.shape[1] - 2)
        top_tokens = pack((tokens[:, 2:], other_tokens[:, 2:]), 1).gather(1, places)
        return pack((total, largest, top), 1), pack((tokens[:, :1], first, top_tokens), 1)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        raise UnsupportedError(
            f"a value cannot be distributed by {self}: it has the candidates of one vocabulary; expected S, R or P"
        )

    def edges(self) -> Iterable[Edge]:
        return (edge for edge in super().edges() if self.sends_state(edge))
