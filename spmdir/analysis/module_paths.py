"""Find the module of each op and argument of a program, by locations or by the names of parameters.

For example, the argument `layers.0.mlp.weight` belongs to the module `layers.0.mlp`, and so does an op without a
location that casts it. If no op has a location, both belong to the layer `layers.0`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.core.equal_layers import layer_of
from spmdir.dialects.locations import places_of
from spmdir.dialects.reshard_ops import FORMS
from spmdir.dialects.values import signature_kind, signature_name


def module_paths(function: FuncOp) -> dict[Operation | SSAValue, str]:
    """Return op, or argument of `function` → the path of its module, such as `layers.0.mlp`; "" if it is unknown.

    The path of a parameter, or of optimizer state of a parameter, follows from its name. The path of an op is the first
    of these that is known:

    - if some locations contain modules: the module in its location; the module of the parameter that it is computed
      from; for a reshard, the module of its operand; the only module that its users are computed from;
    - if no location contains a module: the layer of the parameter that it uses, or else that of the op before it. A
      parameter outside of layers, such as that of a head, ends the layer.
    """
    ops = list(function.body.block.ops)
    located = {op: paths[0] for op in ops if (paths := places_of(op.location).paths)}
    argument_paths = _argument_paths(function, {*located.values()})
    if not located:
        return {**argument_paths, **_paths_by_layer(function, ops, argument_paths)}
    path_of: dict[Operation | SSAValue, str] = {**argument_paths}
    # Parameter, or value computed from parameters by ops without a location → the path of its module
    path_of_value = {value: path for value, path in argument_paths.items() if path}
    for op in ops:  # paths from locations, parameters and operands of reshards
        operand_path = next((path_of_value[value] for value in op.operands if value in path_of_value), None)
        is_reshard = isinstance(op, FORMS)
        if operand_path is not None and (is_reshard or op not in located):
            path_of_value.update(dict.fromkeys(op.results, operand_path))
        producers = [value.owner for value in op.operands if is_reshard and isinstance(value.owner, Operation)]
        producer_paths = [path_of[producer] for producer in producers if path_of[producer]]
        path_of[op] = located.get(op) or operand_path or (producer_paths[0] if producer_paths else "")
    for op in reversed(ops):  # paths of the remaining ops, from their users
        if path_of[op]:
            continue
        users = [use.operation for value in op.results for use in value.uses]
        user_paths = {path_of_value.get(result) for user in users for result in user.results}
        if len(user_paths) == 1 and (path := user_paths.pop()):
            path_of[op] = path
            path_of_value.update(dict.fromkeys(op.results, path))
    return path_of


def _paths_by_layer(
    function: FuncOp, ops: Sequence[Operation], argument_paths: Mapping[SSAValue, str]
) -> dict[Operation, str]:
    """Return op → the layer of the parameter that it uses, or else that of the op before it; "" outside of layers.

    For example, five ops use nothing, a weight of layer 0, nothing, a weight of layer 1, and the weight of the head.
    Their layers are "", 0, 0, 1 and "". A reshard of a parameter counts as the parameter.

    Args:
        argument_paths: argument → its layer; "" if it belongs to none.
    """
    layer_of_value = {value: layer for value, layer in argument_paths.items() if layer}
    layer_count = len({*layer_of_value.values()})
    for argument in function.args:
        if argument not in layer_of_value and _is_outside_layers(function, argument, layer_count):
            layer_of_value[argument] = ""
    layer_of_op: dict[Operation, str] = {}
    layer = ""
    for op in ops:
        layer = next((layer_of_value[value] for value in op.operands if value in layer_of_value), layer)
        is_reshard = isinstance(op, FORMS)
        if is_reshard and any(value in layer_of_value for value in op.operands):
            layer_of_value.update(dict.fromkeys(op.results, layer))
        layer_of_op[op] = layer
    return layer_of_op


def _is_outside_layers(function: FuncOp, argument: BlockArgument, layers: int) -> bool:
    """Return whether users of an argument that belongs to no layer are outside of layers too.

    That holds for a parameter, by its name or kind. It holds for any other argument that is used in fewer places than
    there are layers; a mask, for example, is used in each layer.
    """
    name, kind = (read(function, "arg_attrs", argument.index) for read in (signature_name, signature_kind))
    return kind in ("parameter", "buffer") or "." in (name or "") or len(list(argument.uses)) < layers


def _argument_paths(function: FuncOp, modules: Collection[str]) -> Mapping[SSAValue, str]:
    """Return argument → the path of its module; "" if it is unknown.

    The path is the name without its last part, or the longest suffix of it that is in `modules`: names may have a
    prefix that locations lack.

    Args:
        modules: the paths in locations of ops. If it is empty, the result has the paths of layers instead.
    """
    names = {argument: signature_name(function, "arg_attrs", argument.index) or "" for argument in function.args}
    all_names = {*names.values()}
    path_of: dict[SSAValue, str] = {}
    is_step = any(name.startswith("parameters.") for name in all_names)
    for argument, name in names.items():
        # Names in a traced step begin with the kind of state, as in `exp_avg.layers.0.weight`.
        _, _, name_without_kind = name.partition(".")
        is_state_of_parameter = f"parameters.{name_without_kind}" in all_names
        parameter = name_without_kind if is_state_of_parameter else name
        if not modules:
            layer = layer_of(parameter)  # the whole name if it contains no layer
            path_of[argument] = "" if layer == parameter else layer
            continue
        path = parameter.rpartition(".")[0]
        parts = path.split(".")
        suffixes = [".".join(parts[begin:]) for begin in range(len(parts))]
        # In a step, only names of parameters and of their state contain a path.
        default = path if is_state_of_parameter or not is_step else ""
        path_of[argument] = next((suffix for suffix in suffixes if suffix in modules), default)
    return path_of
