"""Names for the leaves of a traced function's arguments and results, from where they stand in its pytrees.

A leaf of nested dicts is called by its keys, and also by its keys but the first, so that `parameters.up.weight`
and `exp_avg.up.weight` both answer to `up.weight`. A leaf of a list is called by its argument and its index.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import fx

from spmdir.torch_interop.graphs import pytree_info

Names = tuple[str, ...]


def argument_names(graph: fx.Graph) -> list[Names]:
    """Return the names of each placeholder, the best first; none for an argument that is itself a leaf.

    The list is empty if the graph remembers no pytrees.
    """
    info = pytree_info(graph)
    if info is None:
        return []
    leaves = [(info.orig_args[int(path[0])], path[1:]) for path in _paths(info.in_spec)]
    names = [_key_names(path) or ((".".join([root, *path]),) if path else ()) for root, path in leaves]
    count = Counter(entry[0] for entry in names if entry)
    return [
        (".".join([root, *path]), *entry) if entry and count[entry[0]] > 1 else entry
        for entry, (root, path) in zip(names, leaves, strict=True)
    ]


def result_names(graph: fx.Graph) -> list[Names]:
    """Return the names of each output, the best first; none where only positions lead to it."""
    info = pytree_info(graph)
    return [] if info is None or info.out_spec is None else tree_names(info.out_spec)


def tree_names(spec: Any) -> list[Names]:
    """Return the names of the leaves of a tree of results, the best first; none where only positions lead to it."""
    return [_key_names(path[1:] if path and path[0].isdigit() else path) for path in _paths(spec)]


def _key_names(path: Names) -> Names:
    if not path or path[0].isdigit():
        return ()
    return tuple(".".join(path[start:]) for start in range(min(2, len(path))))


def _paths(spec: Any) -> list[Names]:
    """Return the keys, fields and positions that lead to each leaf.

    They are read from the tree itself: classes of others may not be built of anything but their tensors.
    """
    if spec.is_leaf():
        return [()]
    names = field_names(spec.context, spec.num_children) or map(str, range(spec.num_children))
    return [(name, *path) for name, child in zip(names, spec.children(), strict=True) for path in _paths(child)]


def field_names(context: Any, count: int) -> list[str] | None:
    """Return the names of the `count` children of a node of a pytree by its context; None if that does not list them.

    A dictionary and `transformers.ModelOutput` have a list of keys, `torch.export.register_dataclass` that list beside
    the fields that are None, and a named tuple its class.

    Example:
        >>> field_names([["logits", "loss"], ["hidden"]], 2)
        ['logits', 'loss']
    """
    names = getattr(context, "_fields", context)
    if isinstance(names, (list, tuple)) and names and isinstance(names[0], list):
        names = names[0]
    if not isinstance(names, (list, tuple)) or len(names) != count:
        return None
    return list(map(str, names)) if all(isinstance(name, (str, int)) for name in names) else None
