"""The calling convention of a module that was captured with its gradients, as plain values that ranks can send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spmdir.runtime.capture import Convention
from spmdir.torch_interop import pytree


@attrs.frozen(eq=False)
class JointCall:
    """The calling convention of a captured module with its gradients.

    Attributes:
        returned: the number of outputs and gradients that its function returns.
        outputs: the number of outputs among them, including numbers.
        gradients: for each gradient, the name of its argument.
        sources: for each gradient, then for each buffer that the backward writes to, the indices of the outputs whose
            gradients it depends on.
        convention: the structures of the arguments and outputs of the module.
    """

    returned: int
    outputs: int
    gradients: tuple[str, ...]
    sources: tuple[frozenset[int], ...]
    convention: Convention

    @property
    def output_names(self) -> list[str]:
        """The names of the leaves of the output, made of keys and indices."""
        spec = self.convention.out_spec
        indexed = pytree.tree_unflatten(range(spec.num_leaves), spec)
        return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(indexed)[0]]

    def data(self) -> dict[str, Any]:
        """Return the fields as JSON data, except for the convention, which each rank derives from its call."""
        sources = [sorted(source) for source in self.sources]
        return {"returned": self.returned, "outputs": self.outputs, "gradients": self.gradients, "sources": sources}

    @classmethod
    def of(cls, data: Mapping[str, Any], convention: Convention) -> JointCall:
        """Return the call for the result of `data`."""
        sources = tuple(map(frozenset, data["sources"]))
        return cls(data["returned"], data["outputs"], tuple(data["gradients"]), sources, convention)
