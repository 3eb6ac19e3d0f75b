"""`Sampling`: how the next token of a request is chosen."""

from __future__ import annotations

from typing import Any

import attrs

from spmdir.core.arguments import is_amount
from spmdir.core.errors import wrong_argument


@attrs.frozen
class Sampling:
    """Draw the tokens of a request at random; by default, take the most probable ones.

    The tokens depend on the seed, the prompt and the other settings, not on the ranks, the row of the caches, or other
    requests.

    Attributes:
        temperature: logits are divided by this; 0 for the most probable token.
        top_k: only so many of the most probable tokens are drawn; 0 for all. At most `max_top_k` of `serve`.
        top_p: only the most probable tokens are drawn, until their probabilities sum up to this; at most `max_top_k`
            tokens if below 1.
        seed: the seed of the random numbers, an integer of 64 bits.

    Raises:
        SpmdirError: a number is out of its range.

    Example:
        >>> spmdir.serving.Sampling(temperature=0.7, top_p=0.9, seed=1)
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        """Check that each number is in its range."""
        if not is_amount(self.temperature):
            raise wrong_argument("temperature", self.temperature, "a finite number of at least 0")
        if not is_amount(self.top_p) or not 0 < self.top_p <= 1:
            raise wrong_argument("top_p", self.top_p, "a number above 0, and at most 1")
        for name, least in (("top_k", 0), ("seed", -(2**63))):
            value: Any = getattr(self, name)
            if type(value) is not int or not least <= value < 2**63:
                raise wrong_argument(name, value, "an integer of 64 bits" + (" of at least 0" if not least else ""))


GREEDY = Sampling()
"""Take the most probable tokens."""
