"""How Python calls a module that was captured with its gradients, as plain values that ranks can send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spmdir.runtime.capture import Convention
from spmdir.torch_interop import pytree


@attrs.frozen(eq=False)
class JointCall:
    """How a captured module is called.

    Attributes:
        returned: the number of outputs and gradients that its function returns.
        outputs: how many of these are outputs, numbers among them.
        gradients: what each gradient is of, by the names of arguments.
        sources: of each gradient, then of each buffer that the backward writes to, the places of the outputs whose
            gradients it is computed for.
        convention: the structures of what the module takes and returns.
    """

    returned: int
    outputs: int
    gradients: tuple[str, ...]
    sources: tuple[frozenset[int], ...]
    convention: Convention

    @property
    def output_names(self) -> list[str]:
        """What the leaves of what the module returns are called, by keys and places."""
        spec = self.convention.out_spec
        indexed = pytree.tree_unflatten(range(spec.num_leaves), spec)
        return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(indexed)[0]]

    def data(self) -> dict[str, Any]:
        """Return all but the convention in a form that JSON has; each rank has the convention of its own call."""
        sources = [sorted(source) for source in self.sources]
        return {"returned": self.returned, "outputs": self.outputs, "gradients": self.gradients, "sources": sources}

    @classmethod
    def of(cls, data: Mapping[str, Any], convention: Convention) -> JointCall:
        """Return the call that `data` gave the data of."""
        sources = tuple(map(frozenset, data["sources"]))
        return cls(data["returned"], data["outputs"], tuple(data["gradients"]), sources, convention)
