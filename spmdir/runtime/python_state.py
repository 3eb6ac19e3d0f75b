"""The Python state that executed code can read, as facts that ranks can compare and as one fast check.

State is what is reachable from the roots, such as a model and its loss, and from the globals, classes and closures of
the code, by names that the code contains. For `self.l(x) * self.config.k` the facts are, among others:

    model.config: SimpleNamespace
    model.config.k: 1.0
    demo.Model.forward: function demo.Model.forward 5f2c77a1
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from torch import Tensor

from spmdir.runtime.executed_code import ExecutedCode
from spmdir.runtime.state_walk import Caches, StateWalk


@attrs.frozen(eq=False)
class PythonState:
    """State at one moment.

    Attributes:
        facts: path → text of the value; identical for equal state in another process.
        holds: whether the roots, given in order, and all else that the facts are about, still have that state. With
            None for the first root only what is not reachable from roots is compared.
        tensors: path → (reference to the tensor that was there, how often it had been written to).
        caches: what of the state keeps results.
    """

    facts: Mapping[str, str]
    holds: Callable[..., bool]
    tensors: Mapping[str, tuple[weakref.ref[Tensor], int]]
    caches: Caches

    def changes_to(self, other: PythonState) -> list[str]:
        """Return a text for each difference: `model.config.k was 1.0 and is 2.0`."""
        absent = "not there"
        texts = [
            f"{path} was {self.facts.get(path, absent)} and is {other.facts.get(path, absent)}"
            for path in {**self.facts, **other.facts}
            if self.facts.get(path) != other.facts.get(path)
        ]
        for path, (tensor, version) in self.tensors.items():
            now, then = other.tensors.get(path), (tensor(), version)
            if now is not None and (now[0]() is not then[0] or now[1] != then[1]):
                found = "written to since" if now[0]() is then[0] else "another one"
                texts.append(f"{path} was a tensor and is {found}")
        return texts


def python_state(
    code: ExecutedCode,
    roots: Mapping[str, Any],
    *,
    tensors: bool = True,
    omitted: Iterable[str] = (),
    caches: Iterable[str] = (),
) -> PythonState:
    """Return the state that `code` can read.

    Args:
        roots: what the code is called with, such as a model, by the name that messages use.
        tensors: whether tensors that are no parameters or buffers are part of the state.
        omitted: attributes of the first root that are not part of it.
        caches: paths of dicts that are not part of it.
    """
    names = set(code.names)
    while True:
        walk = StateWalk(code, names, roots, tensors, frozenset(omitted), frozenset(caches))
        walk.add_globals()
        arguments = walk.add_roots(roots)
        if walk.names_in_values <= names or not code.names & {"getattr", "hasattr"}:
            return PythonState(walk.facts, walk.compiled(arguments), walk.tensors, walk.caches)
        names |= walk.names_in_values  # `getattr(self, self.kind)` reads what a text in the state names
