"""Names for the leaves of a traced function's arguments and results, from where they stand in its pytrees.

A leaf of nested dicts is called by its keys, and also by its keys but the first, so that `parameters.up.weight`
and `exp_avg.up.weight` both answer to `up.weight`. A leaf of a list is called by its argument and its index.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

Names = tuple[str, ...]


def argument_names(graph: fx.Graph) -> list[Names]:
    """Return the names of each placeholder, the best first; none for an argument that is itself a leaf.

    The list is empty if the graph remembers no pytrees.
    """
    info = getattr(graph._codegen, "pytree_info", None)
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
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None or info.out_spec is None:
        return []
    return [_key_names(path[1:] if path and path[0].isdigit() else path) for path in _paths(info.out_spec)]


def _key_names(path: Names) -> Names:
    if not path or path[0].isdigit():
        return ()
    return tuple(".".join(path[start:]) for start in range(min(2, len(path))))


def _paths(spec: Any) -> list[Names]:
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [tuple(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path) for path, _ in leaves]
