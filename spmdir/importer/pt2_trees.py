"""Replace classes in the pytrees of an exported program by Python's built-in containers.

A program that returns a dataclass, such as `transformers.modeling_outputs.CausalLMOutputWithPast`, names its class in
its output tree. torch would look up the class, and reject the archive if the class has not been imported. The importer
needs only the names of fields: a class with named fields becomes a dictionary, any other class becomes a list.
"""

from __future__ import annotations

import json
from typing import Any

from spmdir.importer.pytree_names import field_names

PLAIN_TREES = frozenset({None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
"""Names of Python's built-in containers in trees of torch; None for a leaf."""

_KEYS = frozenset({"in_spec", "out_spec"})


def with_plain_trees(program: Any) -> Any:
    """Return a program, a JSON value, whose trees of inputs and outputs consist of Python's built-in containers.

    Raises:
        ValueError, LookupError, TypeError: a tree is malformed.

    Example:
        >>> tree = '[1, {"type": "m.Out", "context": "[\\\\"y\\\\"]", "children_spec": [{"type": null}]}]'
        >>> json.loads(with_plain_trees({"out_spec": tree})["out_spec"])[1]["type"]
        'builtins.dict'
    """
    if isinstance(program, dict):
        return {
            key: _make_text_plain(value) if key in _KEYS and isinstance(value, str) else with_plain_trees(value)
            for key, value in program.items()
        }
    return [with_plain_trees(value) for value in program] if isinstance(program, list) else program


def _make_text_plain(text: str) -> str:
    """Return the JSON text of a tree, a pair [version, root], with built-in containers only."""
    protocol, root = json.loads(text)
    return json.dumps([protocol, _make_plain(root)])


def _make_plain(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the node of a tree with built-in containers in place of classes; a leaf has the type None."""
    if spec["type"] is None:
        return spec
    children = [_make_plain(child) for child in spec["children_spec"]]
    if spec["type"] in PLAIN_TREES:
        return {**spec, "children_spec": children}
    context = spec["context"]
    names = field_names(json.loads(context) if isinstance(context, str) else context, len(children))
    kind = "builtins.list" if names is None else "builtins.dict"
    return {"type": kind, "context": json.dumps(names), "children_spec": children}
