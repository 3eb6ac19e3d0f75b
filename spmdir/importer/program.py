"""What is imported: one functional graph whose placeholders and outputs say what they are."""

from __future__ import annotations

import copy
import operator
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.utils import _pytree as pytree

from spmdir.core.admission import NOT_EVEN_TRACED
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.importer.aliases import with_explicit_aliases
from spmdir.importer.fx_arguments import op_name
from spmdir.importer.lists import entrywise, is_known, is_written, works_on_lists
from spmdir.importer.locations import node_location, source_line
from spmdir.importer.statistics import writes_statistics
from spmdir.importer.strided import SLICED
from spmdir.torch_interop.schemas import is_mutable, is_random, reason_against, require_admitted

CONSTANT_BYTES = 1 << 20
"""Tensors outside the state dict that are larger than this become arguments, not constants in the text."""


@attrs.frozen(eq=False)
class Input:
    """A placeholder.

    Attributes:
        node: its fx node.
        names: what it is called, the IR's name first; the others are only for finding it, as the node's name is.
        kind: "parameter", "buffer" or "input" for a function argument; "constant" for a tensor whose value is
            known; "literal" for a user input that is no tensor.
        value: the tensor or the literal, where it is known.
    """

    node: fx.Node
    names: tuple[str, ...]
    kind: str
    value: Any = None

    @property
    def is_argument(self) -> bool:
        """Whether it becomes an argument of the function."""
        return self.kind in ("parameter", "buffer", "input")


@attrs.frozen(eq=False)
class Output:
    """A leaf of what the graph returns.

    Attributes:
        value: an fx node, or a literal.
        names: what it is called, the best first; empty if only a position leads to it.
        kind: "output", or "mutation" for the new value of the input that the name says.
        like: the input whose new value or gradient it is, if the graph's signature says so.
    """

    value: Any
    names: tuple[str, ...]
    kind: str = "output"
    like: str | None = None


@attrs.frozen(eq=False)
class Program:
    """A functional graph: no op mutates, but for `copy_` into placeholders, and nodes have `meta["val"]`.

    Attributes:
        ranges: torch's symbol of a size → its range, where the user gave one.
    """

    graph: fx.Graph
    inputs: list[Input]
    outputs: list[Output]
    ranges: Mapping[Any, Any] = attrs.field(factory=dict)


def is_small(value: Any) -> bool:
    """Whether `value` is a real tensor that can stand in the text as a constant."""
    real = type(value) in (Tensor, torch.nn.Parameter, torch.nn.Buffer) and not value.is_meta
    real = real and not is_functorch_wrapped_tensor(value)  # as transforms leave behind in exported programs
    return real and value.layout == torch.strided and value.numel() * value.element_size() <= CONSTANT_BYTES


def plain_tensor(value: Tensor) -> Tensor:
    """Return `value` on the CPU with elements of its own in memory, which zero gradients and conjugates lack."""
    if value._is_zerotensor():
        return torch.zeros(value.shape, dtype=value.dtype)
    return value.detach().cpu().resolve_conj().resolve_neg()


_AUTOCAST = ("wrap_with_autocast", "_enter_autocast")
_PUT = torch.ops.aten.index_put.default


def needs_retrace(module: fx.GraphModule) -> bool:
    """Whether some op mutates, computes under autocast, works on lists or puts by a mask: the IR says these otherwise.

    Raises:
        UnsupportedError: an op updates lists of tensors in one kernel that nothing tells the entries of.
    """
    kernel = next((n for n in _calls(module) if works_on_lists(n.target) and not is_known(n.target)), None)
    if kernel is not None:
        raise UnsupportedError(
            f"'{kernel.name}' calls {kernel.target}, which updates lists of tensors in one kernel; "
            "make the optimizer with fused=False, or trace a spmdir.training_step",
            source_line(kernel.meta.get("stack_trace")),
        )
    return any(
        is_mutable(node.target)
        or getattr(node.target, "__name__", "") in _AUTOCAST
        or works_on_lists(node.target)
        or writes_statistics(node.target, node.args, node.kwargs)
        or (node.target is _PUT and any(_is_mask(index.meta.get("val")) for index in node.args[1] if index))  # type: ignore
        for node in _calls(module)
    )


def is_exact(module: fx.GraphModule) -> bool:
    """Whether what is imported for each op is this op, or one that gives the same bits."""
    return not any(is_written(node.target) for node in _calls(module))


def decompositions(module: fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """Op of the graph, in functional form → the same by simpler ops, for a trace.

    These are ops on lists, puts by a mask, and parts that are said by strides.
    """
    return {**entrywise(node.target for node in _calls(module)), _PUT: _masked_put, **SLICED}


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool


def _masked_put(self: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """`self[mask] = values` as a choice, where all chosen places get the same; other puts stay as they are."""
    at = [position for position, index in enumerate(indices) if index is not None]
    if len(at) != 1 or not _is_mask(indices[at[0]]) or accumulate:
        return NotImplemented
    mask = indices[at[0]]
    behind = self.dim() - at[0] - mask.dim()
    if values.numel() == 1:
        values = values.reshape(())
    if values.dim() > behind:
        return NotImplemented
    return torch.where(mask.reshape((*mask.shape, *(1,) * behind)), values, self)


def _calls(module: fx.GraphModule) -> Iterator[fx.Node]:
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            yield from (node for node in inner.graph.nodes if node.op == "call_function")


_CHECKS = re.compile(r"aten\.(_assert_\w+|sym_constrain_range\w*|_linalg_check_errors)")
"""Ops that raise an error or do nothing."""


def reject_effects(module: fx.GraphModule) -> None:
    """Reject a graph that calls what may not even run on fake tensors, used or not.

    Raises:
        UnsupportedError: a node opens a file, sends data between ranks, or gives nothing at all, as what prints does;
            assertions may.
    """
    for node in _calls(module):
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        reason = reason_against(node.target)
        is_silent = reason == "gives-nothing" and not node.target._schema.returns
        if reason.partition(" ")[0] in NOT_EVEN_TRACED or (is_silent and not _CHECKS.match(op_name(node.target))):
            require_admitted_node(node)


def require_admitted_node(node: fx.Node) -> None:
    """Raise UnsupportedError, located, if no program may call the op of `node`."""
    try:
        require_admitted(node.target)
    except UnsupportedError as error:
        name = op_name(node.target)
        raise UnsupportedError(f"'{node.name}' calls {name}, which {error.message}", node_location(node)) from None


def draws(node: fx.Node) -> bool:
    """Whether a node may take numbers from the stream that all random ops share, so that later ones get others."""
    if is_random(node.target):
        return node.kwargs.get("generator") is None
    return any(map(draws, _inner_nodes(node)))


def _inner_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes of the graphs that a node is given."""
    for argument in node.all_input_nodes:
        body = getattr(node.graph.owning_module, str(argument.target), None) if argument.op == "get_attr" else None
        if isinstance(body, fx.GraphModule):
            yield from body.graph.nodes


def live(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that outputs, mutations and later draws depend on; assertions, guards and metadata are not."""
    return _with_inputs(graph, (n for n in graph.nodes if n.op == "output" or is_mutable(n.target) or draws(n)))


def _with_inputs(graph: fx.Graph, nodes: Iterable[fx.Node]) -> set[fx.Node]:
    found = set(nodes)
    for node in reversed(graph.nodes):
        if node in found:
            found.update(node.all_input_nodes)
    return found


def without_dead_code(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy whose calls are those that results, writes and draws depend on, inner graphs included."""
    needed = _with_inputs(module.graph, (n for n in module.graph.nodes if n.op != "get_attr" and _has_effect(n)))
    graph, copies = fx.Graph(), {}
    for node in module.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    new = fx.GraphModule(module, graph)
    for node in graph.find_nodes(op="get_attr"):
        body = getattr(new, str(node.target), None)
        if isinstance(body, fx.GraphModule):
            setattr(new, str(node.target), without_dead_code(body))
    return new


_MODES = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled")
"""Functions that change how the calls behind them run."""


def _has_effect(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output") or getattr(node.target, "__name__", "") in _MODES:
        return True
    own = is_mutable(node.target) or writes_statistics(node.target, node.args, node.kwargs) or draws(node)
    return own or any(_has_effect(n) for n in _inner_nodes(node) if n.op == "call_function")


def reject_numbers(nodes: Iterable[fx.Node]) -> None:
    """Reject a call that gives a number out of a tensor.

    Raises:
        UnsupportedError: a node is such a call.
    """
    for node in nodes:
        if torch.Tag.data_dependent_output in getattr(node.target, "tags", ()):
            raise UnsupportedError(
                f"'{node.name}' calls {op_name(node.target)}, which reads a number out of a tensor; keep it a tensor, "
                "since ranks could disagree on it: torch's optimizers do with fused=True, as does spmdir.training_step",
                node_location(node),
            )


_NEEDS_VALUES = {
    "DataDependentOutputException": "it reads a number out of a tensor; keep it a tensor, since ranks could disagree",
    "DynamicOutputShapeException": "the size of a result depends on data; use an op of fixed size, as torch.where",
}
"""Error of fake tensors, which have no values → what is said instead of its name."""


@contextmanager
def torch_errors(what: str, node: fx.Node | None = None) -> Iterator[None]:
    """Make whatever torch raises inside an UnsupportedError at `node`, which says `what` failed.

    What spmdir's own code raises stays as it is, so that it is seen as the bug that it is.
    """
    try:
        yield
    except (SpmdirError, Warning):
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_ours = frame.f_globals.get("__name__", "").partition(".")[0] == "spmdir"
        if is_ours and isinstance(error, (AssertionError, AttributeError, LookupError, NameError, TypeError)):
            raise
        reason = str(error).strip().partition("\n")[0]
        place = node_location(node) if node else None
        told = _NEEDS_VALUES.get(type(error).__name__, type(error).__name__)
        raise UnsupportedError(f"{what}: {told}: {reason}", place) from error


MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


def read_exported(exported: torch.export.ExportedProgram) -> Program:
    """The program of `torch.export`, with its parameters and buffers by FQN.

    Raises:
        UnsupportedError: it takes or returns something that is neither a tensor nor a literal.
    """
    kept = 0
    if needs_retrace(exported.graph_module):
        with torch_errors("the exported program cannot be made functional"):
            exported, kept = _with_draws(exported_with_explicit_aliases(exported))
            exported = exported.run_decompositions(decompositions(exported.graph_module))
    signature = exported.graph_signature
    graph = _without_tokens(exported)
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    changed = {spec.target for spec in signature.output_specs if spec.kind in MUTATIONS}
    specs = [spec for spec in signature.input_specs if spec.kind != InputKind.TOKEN]
    inputs = [_input(exported, spec, placeholders[spec.arg.name], changed) for spec in specs]
    inputs = _without_ties(inputs, exported.state_dict)
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    outputs = []
    for value, spec in zip(returned, (s for s in signature.output_specs if s.kind != OutputKind.TOKEN), strict=True):
        if spec.kind in MUTATIONS:
            outputs.append(Output(value, (str(spec.target),), "mutation", spec.target))
        else:
            outputs.append(Output(value, (), "output", spec.target))
    return Program(graph, inputs, outputs[: len(outputs) - kept], exported.range_constraints)


def exported_with_explicit_aliases(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with all aliases told that writes depend on."""
    held = [node.meta.get("val") for node in exported.graph.find_nodes(op="placeholder")]
    module = with_explicit_aliases(exported.graph_module, held)
    if module is exported.graph_module:
        return exported
    signature = copy.deepcopy(exported.graph_signature)
    (output,) = module.graph.find_nodes(op="output")
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if isinstance(value, fx.Node) and isinstance(spec.arg, TensorArgument):
            spec.arg = TensorArgument(value.name)
    return exported._update(module, signature)


def _with_draws(exported: torch.export.ExportedProgram) -> tuple[torch.export.ExportedProgram, int]:
    """The program with all that it draws as further outputs, and their number: torch would drop what has no use."""
    if not any(map(draws, exported.graph.nodes)):
        return exported, 0
    module, drawn = _exposed(exported.graph_module)
    signature = copy.deepcopy(exported.graph_signature)
    signature.output_specs += [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(v.name), None) for v in drawn]
    program = exported._update(module, signature)
    root = program.module_call_graph[0].signature
    assert root is not None  # the one of the program
    count = sum(spec.kind == OutputKind.USER_OUTPUT for spec in signature.output_specs)
    root.out_spec = pytree.tree_structure((0,) * count)
    return program, len(drawn)


def _exposed(module: fx.GraphModule) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A copy that also returns what it draws, inner graphs included, and these values."""
    graph, copies = fx.Graph(), {}
    returned: Any = graph.graph_copy(module.graph, copies)
    drawn: list[fx.Node] = []
    bodies: dict[str, fx.GraphModule] = {}
    for node in filter(draws, module.graph.nodes):
        call = copies[node]
        if isinstance(node.target, torch._ops.OpOverload):
            if node.target is torch.ops.aten.dropout.default and node.args[1] == 1 and node.args[2]:
                # What drops all draws nothing; torch would make it an op that does.
                call.target, call.args = torch.ops.aten.mul.Tensor, (call.args[0], 0.0)
            else:
                drawn.append(call if isinstance(call.meta["val"], Tensor) else _item(call, 0))
            continue
        for attribute in (a for a in node.all_input_nodes if a.op == "get_attr"):
            name = str(attribute.target)
            bodies[name], inner = _exposed(getattr(module, name))
            first = len(call.meta["val"])
            call.meta["val"] = (*call.meta["val"], *(value.meta["val"] for value in inner))
            drawn += [_item(call, first + index) for index in range(len(inner))]
    graph.output((*returned, *drawn))
    new = fx.GraphModule(module, graph)
    for name, body in bodies.items():
        setattr(new, name, body)
    return new, drawn


def _item(source: fx.Node, index: int) -> fx.Node:
    item = source.graph.call_function(operator.getitem, (source, index))
    item.meta["val"] = source.meta["val"][index]
    return item


def _without_tokens(exported: torch.export.ExportedProgram) -> fx.Graph:
    """The graph of a program, a copy without the tokens that order its checks if it has any; then nothing uses these.

    Raises:
        UnsupportedError: tokens order other side effects.
    """
    effects = exported.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    for node in effects:
        if node.args[1] is not torch.ops.aten._linalg_check_errors.default:
            raise UnsupportedError(
                f"'{node.name}' calls {node.args[1]}, whose side effects tokens order; remove it and export again",
                source_line(node.meta.get("stack_trace")),
            )
    if not effects:
        return exported.graph
    graph = fx.Graph()
    returned: Any = graph.graph_copy(exported.graph, {})
    specs = exported.graph_signature.output_specs
    graph.output(tuple(v for v, spec in zip(returned, specs, strict=True) if spec.kind != OutputKind.TOKEN))
    return fx.GraphModule(exported.graph_module, graph).graph


def _without_ties(inputs: list[Input], state: Mapping[str, Any]) -> list[Input]:
    """The inputs without unused ones that are the same tensor as a used one, whose names it takes over."""
    tied: dict[int, list[Input]] = {}
    for entry in inputs:
        if entry.names[0] in state:
            tied.setdefault(id(state[entry.names[0]]), []).append(entry)
    heirs: dict[str, Input | None] = {}
    for group in tied.values():
        used = next((entry for entry in group if entry.node.users), None)
        if used is not None:
            others = [entry for entry in group if entry is not used and not entry.node.users]
            names = tuple(name for entry in others for name in entry.names)
            heirs[used.names[0]] = attrs.evolve(used, names=used.names + names)
            heirs |= dict.fromkeys(names)
    merged = [heirs.get(entry.names[0], entry) for entry in inputs]
    return [entry for entry in merged if entry is not None]


def _input(exported: torch.export.ExportedProgram, spec: Any, node: fx.Node, changed: set[str | None]) -> Input:
    names = (spec.target or node.name,)
    if spec.kind == InputKind.PARAMETER:
        return Input(node, names, "parameter")
    if spec.kind == InputKind.USER_INPUT:
        tensor = isinstance(node.meta.get("val"), Tensor)
        return Input(node, names, "input" if tensor else "literal", getattr(spec.arg, "value", None))
    if spec.kind not in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        raise UnsupportedError(f"input '{node.name}' is a {spec.kind.name.lower()}; expected tensors and numbers only")
    value = exported.constants.get(spec.target)
    if spec.target in exported.state_dict or spec.target in changed or not is_small(value):
        return Input(node, names, "buffer")
    return Input(node, names, "constant", value)
