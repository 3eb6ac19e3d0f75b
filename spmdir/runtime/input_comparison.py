"""Compare the inputs of calls between ranks: in the first calls of a program, then at fixed intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from torch import Tensor

from spmdir.core.errors import SpmdirError
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.digests import quick_digest
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument

INTERVAL = 256
"""Maximum number of calls between two comparisons of a program."""


@attrs.define(eq=False)
class InputComparison:
    """Compares the inputs of the calls of one program.

    Calls 1, 2, 4, 8, … up to `INTERVAL` are compared, then every `INTERVAL`-th one. A comparison costs a digest of the
    inputs and one exchange through the store of the process group.

    Attributes:
        calls: the number of calls so far.
        peers: the ranks that must pass the same inputs as this one; None until the first comparison.
    """

    ranks: Ranks
    calls: int = 0
    peers: RankGroup | None = None

    @contextmanager
    def check_call(self, arguments: Sequence[Argument], tensors: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
        """Run the body, the checks of a call. If a comparison is due, then compare the inputs with other ranks.

        With global inputs, all ranks must pass equal inputs. With local inputs, ranks with the same shards must.

        Yields: a status, to which the body may add fields for the comparison.

        Args:
            arguments: the arguments that the call passes.
            tensors: their values.

        Raises:
            SpmdirError: a check fails; raised on all ranks if this call compares inputs.
            DivergenceError: on all ranks, if inputs differ.
        """
        self.calls += 1
        with self.ranks.group.report_errors():
            if not _is_due(self.calls):
                yield {}
                return
            self.peers = self.peers or _find_peers(self.ranks, arguments)
            if len(self.peers.members) == 1:
                yield {}
                return
            try:
                with self.peers.check_agreement("the inputs of a call") as status:
                    yield status
                    status["shards" if self.ranks.local_inputs else "inputs"] = {
                        argument.name: quick_digest(tensor.to(self.ranks.device))
                        for argument, tensor in zip(arguments, tensors, strict=True)
                    }
            except SpmdirError:
                self.calls -= 1  # all peers fail, so the next call is compared instead
                raise


def _is_due(call: int) -> bool:
    """Return whether the inputs of a call are compared; `call` counts from 1.

    The inputs of calls 1, 2, 4, 8, … and of multiples of `INTERVAL` are compared.
    """
    return call % INTERVAL == 0 or (call < INTERVAL and call & (call - 1) == 0)


def _find_peers(ranks: Ranks, arguments: Sequence[Argument]) -> RankGroup:
    """Return the ranks that must pass equal inputs: all, or with local inputs the ranks with the same shards."""
    if not ranks.local_inputs:
        return ranks.group
    return ranks.group_across({axis for argument in arguments for axis, _ in argument.sharding.entries})
