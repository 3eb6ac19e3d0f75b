"""Compare ranks before they run a program, and exchange their errors, through the store of the process group.

The store works where collectives cannot: ranks may write and read it at different times.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import torch.distributed as dist
from torch.distributed import distributed_c10d

from spmdir.core.errors import CLASSES, DivergenceError, Location, SpmdirError, warnings_issued
from spmdir.core.progress import shown_on_terminal
from spmdir.torch_interop.group_registry import default_store, default_timeout

LINGER = 60.0
"""The longest time, in seconds, that a rank stays alive until the other ranks have read an error.

The process of the rank may host the store. If it ended earlier, the other ranks could not read the error.
"""

PASS_SAME = "pass the same value on all ranks"
"""The advice for options that differ between ranks."""

SAME = "use the same model, shapes and shardings on all ranks"
"""The advice for programs that differ between ranks."""

COMPARED: dict[str, Callable[[Any, Any, str], str]] = {
    "torch": lambda left, right, ranks: f"{ranks} run torch {left} and {right}; install the same version on all ranks",
    "spmdir": lambda left, right, ranks: (
        f"{ranks} run different versions of spmdir; install the same version on all ranks"
    ),
    "mesh": lambda left, right, ranks: f"{ranks} pass the meshes {left} and {right}; pass the same mesh on all ranks",
    "what": lambda left, right, ranks: (
        f"{ranks} make different calls, {left} and {right}; make the same calls in the same order on all ranks"
    ),
    "sync_state": lambda left, right, ranks: f"{ranks} pass sync_state={left} and sync_state={right}; {PASS_SAME}",
    "local_inputs": lambda left, right, ranks: (
        f"{ranks} pass local_inputs={left} and local_inputs={right}; {PASS_SAME}"
    ),
    "compile": lambda left, right, ranks: (
        f"{ranks} pass different options of compile; pass the same options on all ranks"
    ),
    "step": lambda left, right, ranks: f"{ranks} pass step={left} and step={right}; {PASS_SAME}",
    "keep": lambda left, right, ranks: f"{ranks} pass keep={left} and keep={right}; {PASS_SAME}",
    "directory": lambda left, right, ranks: (
        f"{ranks} pass the directories {left!r} and {right!r}; pass one shared directory"
    ),
    "pipeline": lambda left, right, ranks: (
        f"{ranks} pass {_different_pipelines(left, right)}; pass the same pipeline, plug-ins and topology on all ranks"
    ),
    "sizes": lambda left, right, ranks: (
        f"{ranks} call with the sizes {_sizes_text(left)} and {_sizes_text(right)}; pass the same arguments on all "
        "ranks, or set local_inputs=True if each rank has its own batch"
    ),
    "inputs": lambda left, right, ranks: (
        f"{ranks} pass different values of the input '{_first_difference(left, right)}'; expected the same global "
        "batch on all ranks; set local_inputs=True if each rank has its own batch"
    ),
    "shards": lambda left, right, ranks: (
        f"{ranks} pass different values of the input '{_first_difference(left, right)}', of which they have the same "
        "shard; with local_inputs=True, batches may differ only along the axes that shard the inputs: if dp shards "
        'them, pass num_replicas=mesh["dp"].size() and rank=mesh["dp"].get_local_rank() to the sampler'
    ),
    "placements": lambda left, right, ranks: (
        f"{ranks} get different shards of '{_first_difference(left, right)}' from the code of this placement; "
        "expected a result that depends only on the arguments, not on `hash` of a text, random numbers, the time or "
        "the environment"
    ),
    "program": lambda left, right, ranks: f"{ranks} of the mesh would run different programs; {SAME}",
    "meta": lambda left, right, ranks: (
        f"{ranks} differ: only one has '{min(set(left) ^ set(right))}' on the meta device; give it values on all "
        "ranks or none"
    ),
    "state": lambda left, right, ranks: (
        f"{ranks} start with different values of '{_first_difference(left, right)}'; make the model from the same "
        "seed or checkpoint on all ranks, or set sync_state=True to copy the values of the first rank"
    ),
    "saved": lambda left, right, ranks: (
        f"{ranks} save different values of '{_first_difference(left, right)}', but a checkpoint stores only one; make "
        "them equal, or save them under a separate name for each rank"
    ),
}
"""Field of a status, in the order of comparison → function that returns the error message.

The arguments of the function are the values of the field on two ranks, and a text such as `ranks 0 and 1`.
"""

SHARED: dict[str, Callable[[str, Mapping[str, Any], Mapping[str, Any], str], str]] = {
    "messages": lambda message, left, right, ranks: (
        f"{ranks} pass local inputs of different sizes, {_different_sizes(left['lengths'], right['lengths'])}, and "
        f"{message.rpartition('#')[0]} depends on the sizes; pass inputs of one size on these ranks, or give gathered "
        "outputs an out-sharding, such as dp: S(0)"
    ),
}
"""Field of a status that is a dict → function that returns the error message.

Ranks compare only the keys that they have in common. The arguments of the function are such a key, the statuses of two
ranks, and a text such as `ranks 0 and 1`.
"""


@attrs.define(eq=False)
class RankGroup:
    """The ranks of a mesh, on one of them.

    Attributes:
        members: the global ranks, in mesh order.
        index: the index of this rank in `members`.
        timeout: the timeout of the process group, in seconds.
        agreed: the value that the ranks last agreed on; callers set it.
        numbers: for each member, the number that errors print: its index in the mesh.
        _store: the store of the process group, with a prefix for this group.
        _round: the number of exchanges of statuses so far.
        _reported: whether the store may have an error of this rank.
    """

    members: tuple[int, ...]
    index: int
    timeout: float
    _store: Any
    agreed: object = None
    numbers: tuple[int, ...] = attrs.field(
        default=attrs.Factory(lambda self: tuple(range(len(self.members))), takes_self=True)
    )
    _round: int = 0
    _reported: bool = False

    @classmethod
    def join(cls, members: Sequence[int]) -> RankGroup:
        """Return the group of the global ranks `members`. Each of them calls this, in the same order of calls."""
        members, own_rank = tuple(members), dist.get_rank()
        store = default_store()
        store = distributed_c10d.PrefixStore("spmdir/" + ",".join(map(str, members)), store)
        # Ranks join in the same order, so the n-th group of each rank with these members has the prefix n.
        count = store.add(f"groups of {own_rank}", 1)
        return cls(members, members.index(own_rank), default_timeout(), distributed_c10d.PrefixStore(str(count), store))

    def make_subgroup(self, numbers: Sequence[int]) -> RankGroup:
        """Return the group of the members with these `numbers`. Its members keep their numbers in errors.

        Each of these members calls this, in the same order of calls.
        """
        group = RankGroup.join([self.members[self.numbers.index(number)] for number in numbers])
        group.numbers, group.timeout = tuple(numbers), self.timeout
        return group

    @contextmanager
    def check_agreement(self, operation: str) -> Iterator[dict[str, Any]]:
        """Run the body on each rank, then compare the status that it has filled on each; all ranks must enter.

        If the body raises on a rank, all ranks raise. Only the first rank issues the warnings of the body, and shows
        progress on its terminal if it has one.

        Yields: the status, a dict for fields of COMPARED and SHARED with JSON values.

        Args:
            operation: the name of the step that the ranks run, for errors.

        Raises:
            SpmdirError: on all ranks, if one of them raised, with the class of that error; or if a rank does not arrive
                within the timeout of the process group.
            DivergenceError: on all ranks, if they differ in a field of COMPARED or SHARED.
        """
        status: dict[str, Any] = {"what": operation}
        try:
            with shown_on_terminal(self.index == 0), warnings_issued(self.index == 0):
                yield status
        except Exception as error:
            with suppress(SpmdirError):
                self._exchange_status({"what": operation, "error": _encode_error(error)})
            raise
        verdict = self._exchange_status(status)
        if verdict:
            raise _decode_error(verdict)

    def broadcast_text(
        self, operation: str, produce_text: Callable[[], str], meanwhile: Callable[[], None] = lambda: None
    ) -> str:
        """Return on every rank the text that `produce_text` returns on the first rank; all ranks must call this.

        Args:
            meanwhile: called on the other ranks before they wait for the text.

        Raises:
            SpmdirError: on all ranks, if `produce_text` or `meanwhile` raised, or if a rank does not arrive within the
                timeout of the process group.
        """
        key = f"{self._round + 1}/text"
        with self.check_agreement(operation):
            if self.index == 0:
                text = produce_text()
                self._store.set(key, zlib.compress(text.encode()))
                return text
            meanwhile()
        with self._reaching_store(operation):
            return zlib.decompress(self._store.get(key)).decode()

    @contextmanager
    def report_errors(self) -> Iterator[None]:
        """Write an error of the body to the store, without waiting for other ranks, and raise it.

        A rank whose collective fails reads the errors with `reported_errors`. After a body without an error, an earlier
        report of this rank is deleted.
        """
        try:
            yield
        except Exception as error:
            self.report_error(error)
            raise
        if self._reported:
            self._reported = False
            with suppress(RuntimeError):
                self._store.delete_key(f"error of {self.index}")

    def report_error(self, error: Exception) -> None:
        """Write `error` to the store for `reported_errors`. If the store cannot be reached, do nothing."""
        self._reported = True
        with suppress(RuntimeError):
            self._store.set(f"error of {self.index}", json.dumps(_encode_error(error)))

    def reported_errors(self) -> str:
        """Return the errors that ranks reported, as the start of a message: `rank 1: MESSAGE; `.

        For a rank without an error that waits at its next operation, the text has the operation. It is empty if no rank
        has an error or waits, or if the store cannot be reached.
        """
        texts = []
        with suppress(RuntimeError):
            for index, number in enumerate(self.numbers):
                next_key = f"{self._round + 1}/{index}"
                if self._store.check([f"error of {index}"]):
                    report = json.loads(self._store.get(f"error of {index}"))
                    texts.append(f"rank {number}: {report['message']}; ")
                elif self._store.check([next_key]):
                    status = json.loads(self._store.get(next_key))
                    texts.append(f"rank {number} has reached {status['what']}; ")
        return "".join(texts)

    def _exchange_status(self, status: dict[str, Any]) -> dict[str, Any]:
        """Write the status of this rank to the store, and return the verdict: the error of all ranks, or an empty dict.

        The first rank reads the statuses of all ranks, compares them and writes the verdict. The others wait for the
        verdict. Each call is one round. In round 3 of two ranks, the store has the statuses `3/0` and `3/1`, the
        verdict `3/verdict`, and in `3/seen` the number of ranks that have read an error.

        Returns: an error, as `_encode_error` returns it; empty if there is none. `missing` is True in it if a rank did
            not arrive within the timeout.
        """
        self._round += 1
        store = distributed_c10d.PrefixStore(str(self._round), self._store)
        with self._reaching_store(status["what"]):
            store.set(str(self.index), json.dumps(status))
            if self.index == 0:
                # An error of this rank is the verdict at once, without a wait for the other ranks.
                verdict = self._verdict([status]) or self._compare(store, status["what"])
                store.set("verdict", json.dumps(verdict))
            elif self._await(lambda: store.check(["verdict"]), self._linger if "error" in status else self.timeout):
                verdict = json.loads(store.get("verdict"))
            else:
                verdict = self._missing_verdict(store, status["what"])
            if verdict:
                store.add("seen", 1)
            # The store may end with this process, so stay until the other ranks have read the error.
            if verdict and not verdict.get("missing"):
                self._await(lambda: store.add("seen", 0) >= len(self.members), self._linger)
        return verdict

    @contextmanager
    def _reaching_store(self, operation: str) -> Iterator[None]:
        """Turn an error of the store in the body into an SpmdirError with the name of `operation`."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise SpmdirError(
                f"rank {self.numbers[self.index]} cannot reach the store of the process group at "
                f"{operation}: {reason}; expected a running store: read the error of the process that hosts "
                "it, which has ended"
            ) from error

    def _compare(self, store: Any, operation: str) -> dict[str, Any]:
        """Wait for all statuses in `store`, and return the verdict; only the first rank calls this."""
        keys = [str(index) for index in range(len(self.members))]
        if not self._await(lambda: store.check(keys), self.timeout):
            return self._missing_verdict(store, operation)
        self._forget(self._round - 1)
        texts = store.multi_get(keys)
        if all(text == texts[0] for text in texts) and b'"error":' not in texts[0]:
            return {}
        # `_exchange_status` has written the statuses as JSON.
        try:
            return self._verdict([json.loads(text) for text in texts])
        except Exception as error:  # the other ranks wait for a verdict in any case
            return {"message": f"the ranks cannot be compared at {operation}: {_encode_error(error)['message']}"}

    def _verdict(self, statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the error for the first error or difference in the statuses of the members; empty without one."""
        return compare_statuses(statuses, self.numbers)

    def _missing_verdict(self, store: Any, operation: str) -> dict[str, Any]:
        """Return the error for ranks that have not written a status within the timeout.

        If all have, the first rank has not written the verdict in time, so the error names the first rank.
        """
        missing_indices = [index for index in range(len(self.members)) if not store.check([str(index)])] or [0]
        missing_numbers = [str(self.numbers[index]) for index in missing_indices]
        message = (
            f"{self.reported_errors()}rank {', '.join(missing_numbers)} has not reached {operation} within "
            f"{self.timeout:g} s, the timeout of the process group; it has ended, hangs, or is in another call"
        )
        return {"message": message, "missing": True}

    @property
    def _linger(self) -> float:
        """The longest wait, in seconds, until the other ranks have read an error."""
        return min(LINGER, self.timeout)

    @staticmethod
    def _await(is_ready: Callable[[], bool], timeout: float) -> bool:
        """Wait until `is_ready` returns True; return False after `timeout` seconds."""
        begin_time = time.monotonic()
        while not is_ready():
            waited = time.monotonic() - begin_time
            if waited > timeout:
                return False
            # Poll rarely in a long wait, to leave the processor to other ranks.
            time.sleep(min(max(0.001, waited / 20), 1.0))
        return True

    def _forget(self, round: int) -> None:
        """Delete the entries of a round from the store. Rounds are counted from 1, so round 0 has none.

        This is safe once all ranks have entered the next round, because each has then left this round.
        """
        if not round:
            return
        for key in (*map(str, range(len(self.members))), "verdict", "seen", "text"):
            self._store.delete_key(f"{round}/{key}")


def compare_statuses(statuses: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the first error in the statuses, else the error for the first difference; empty if there is none.

    The statuses {"mesh": "<a = 2>"} and {"mesh": "<a = 4>"} of the ranks 0 and 1 give a DivergenceError with the
    message `ranks 0 and 1 pass the meshes <a = 2> and <a = 4>; …`.

    Args:
        statuses: the status of each rank.
        numbers: the numbers that errors print for the ranks of the statuses.
    """
    for number, status in zip(numbers, statuses, strict=False):
        if "error" in status:
            return {**status["error"], "rank": number}
    for field, explain in COMPARED.items():
        reference = statuses[0].get(field)
        for number, status in zip(numbers, statuses, strict=False):
            if status.get(field) != reference:
                message = explain(reference, status.get(field), f"ranks {numbers[0]} and {number}")
                return {"message": message, "class": DivergenceError.__name__}
    for field, explain_key in SHARED.items():
        first_status_with: dict[str, tuple[int, Mapping[str, Any]]] = {}
        for number, status in zip(numbers, statuses, strict=False):
            for key, value in status.get(field, {}).items():
                earlier_number, earlier_status = first_status_with.setdefault(key, (number, status))
                if earlier_status[field][key] != value:
                    message = explain_key(key, earlier_status, status, f"ranks {earlier_number} and {number}")
                    return {"message": message, "class": DivergenceError.__name__}
    return {}


def _encode_error(error: Exception) -> dict[str, Any]:
    """Return the fields of an error as JSON data, for `_decode_error`; only the first line of an error of Python."""
    if not isinstance(error, SpmdirError):
        return {"message": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    location = attrs.astuple(error.location) if error.location else None
    return {"message": error.message, "location": location, "class": type(error).__name__}


def _decode_error(encoded: Mapping[str, Any]) -> SpmdirError:
    """Return the error with the fields that `_encode_error` returned; an SpmdirError if its class is not in CLASSES."""
    rank, location = encoded.get("rank"), encoded.get("location")
    message = encoded["message"] if rank is None else f"rank {rank}: {encoded['message']}"
    return CLASSES.get(encoded.get("class", ""), SpmdirError)(message, Location(*location) if location else None)


def _sizes_text(sizes: Mapping[str, int] | None) -> str:
    """Return the sizes of a call as text: `{"n": 4, "m": 2}` → `n = 4, m = 2`."""
    return ", ".join(f"{name} = {number}" for name, number in (sizes or {}).items())


def _different_sizes(left: Mapping[str, int], right: Mapping[str, int]) -> str:
    """Return the differing sizes of two ranks as text: `3 and 4 in dimension 0 of 'x'`."""
    return ", ".join(
        f"{size} and {right[dimension]} in {dimension}" for dimension, size in left.items() if size != right[dimension]
    )


def _different_pipelines(left: Mapping[str, str], right: Mapping[str, str]) -> str:
    """Return the difference between the pipelines of two ranks as text."""
    if left["text"] != right["text"]:
        return f"the pipelines {left['text']} and {right['text']}"
    return f"the pipeline {left['text']} with different plug-ins or topologies"


def _first_difference(left: Mapping[str, str], right: Mapping[str, str]) -> str:
    """Return the first name whose value differs between two ranks, or that one of them lacks."""
    return next(name for name in {**left, **right} if left.get(name) != right.get(name))
