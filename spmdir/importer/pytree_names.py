"""Name the leaves of the arguments and results of a traced function by their paths in its pytrees.

The names of a leaf of nested dicts are its keys, and its keys without the first: `parameters.up.weight` and
`exp_avg.up.weight` both have the name `up.weight`. The name of a leaf of a list is its argument and its index.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import fx

from spmdir.torch_interop.graphs import pytree_info

Names = tuple[str, ...]


def argument_names(graph: fx.Graph) -> list[Names]:
    """Return the names of each placeholder, the best first. An argument that is itself a leaf has no names.

    If leaves share their best name, the path of each, starting with its argument, comes first. The list is empty if the
    graph has no pytrees.
    """
    info = pytree_info(graph)
    if info is None:
        return []
    # Of `f(params, batch)`, the leaf `params["up"]["weight"]` is ("params", ("up", "weight")).
    leaves = [(info.orig_args[int(path[0])], path[1:]) for path in _leaf_paths(info.in_spec)]
    names_of_leaves = []
    for argument, path in leaves:
        full_names = (".".join([argument, *path]),) if path else ()
        names_of_leaves.append(_key_names(path) or full_names)
    count = Counter(names[0] for names in names_of_leaves if names)
    unique_names = []
    for (argument, path), names in zip(leaves, names_of_leaves, strict=True):
        is_shared = bool(names) and count[names[0]] > 1
        unique_names.append((".".join([argument, *path]), *names) if is_shared else names)
    return unique_names


def result_names(graph: fx.Graph) -> list[Names]:
    """Return the names of each output, the best first. An output whose path has only positions has none."""
    info = pytree_info(graph)
    return [] if info is None or info.out_spec is None else tree_names(info.out_spec)


def tree_names(spec: Any) -> list[Names]:
    """Return the names of each leaf of a tree of results, the best first. A leaf with only positions has none."""
    return [_key_names(path[1:] if path and path[0].isdigit() else path) for path in _leaf_paths(spec)]


def _key_names(path: Names) -> Names:
    """Return the names of a leaf from its path: all its keys, and all but the first, each joined by dots.

    The result is () if the path is empty or starts with a position.


    Example:
        >>> _key_names(("exp_avg", "up.weight"))
        ('exp_avg.up.weight', 'up.weight')
    """
    if not path or path[0].isdigit():
        return ()
    return tuple(".".join(path[start:]) for start in range(min(2, len(path))))


def _leaf_paths(spec: Any) -> list[Names]:
    """Return the path of each leaf: keys, fields and positions.

    Paths are read from the tree specification. Rebuilding the tree with placeholders could fail, because user classes
    may accept only tensors.
    """
    if spec.is_leaf():
        return [()]
    names = field_names(spec.context, spec.num_children) or map(str, range(spec.num_children))
    return [(name, *path) for name, child in zip(names, spec.children(), strict=True) for path in _leaf_paths(child)]


def field_names(context: Any, count: int) -> list[str] | None:
    """Return the names of the `count` children of a pytree node from its context; None if it does not list them.

    The context of a dictionary or a `transformers.ModelOutput` is a list of keys. The context of a dataclass that is
    registered with torch.export is a pair (keys, fields that are None). The context of a named tuple is its class.

    Example:
        >>> field_names([["logits", "loss"], ["hidden"]], 2)
        ['logits', 'loss']
    """
    names = getattr(context, "_fields", context)  # of a named tuple, or else the context itself
    if isinstance(names, (list, tuple)) and names and isinstance(names[0], list):
        names = names[0]
    if not isinstance(names, (list, tuple)) or len(names) != count:
        return None
    return list(map(str, names)) if all(isinstance(name, (str, int)) for name in names) else None
