"""Private names of torch are used in spmdir/torch_interop alone, and each is listed here.

A name is private if a part of it begins with an underscore. Ops are not counted: `torch.ops.aten._to_copy` is a name in
programs. The attribute `_x` of an object is counted if neither the file nor, for `self`, spmdir defines an `_x`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from tests.test_source_tree import ORDER

ROOT = Path(__file__).parents[2] / "spmdir"

LISTED = {
    "archives.py": """
        ._guards_code torch._C.PyTorchFileReader torch.export.pt2_archive._package.PT2ArchiveReader
        torch.export.pt2_archive._package._load_exported_programs
    """,
    "decompositions.py": """
        ._can_decompose ._op_dk torch._C.DispatchKey.CompositeExplicitAutograd
        torch._C._dispatch_has_computed_kernel_for_dispatch_key torch._decomp.decomposition_table
    """,
    "dispatch.py": """
        torch._C.DisableTorchFunctionSubclass torch._C._ForceDispatchKeyGuard torch._C._disabled_torch_function_impl
        torch._C._dispatch_tls_local_exclude_set torch._C._dispatch_tls_local_include_set
        torch._C.DispatchKey.FuncTorchBatched torch._C.DispatchKey.FuncTorchDynamicLayerBackMode
        torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode torch._C.DispatchKey.FuncTorchGradWrapper
        torch._C.DispatchKey.FuncTorchVmapMode
        torch._C._functorch.is_functorch_wrapped_tensor torch._C._functorch.peek_interpreter_stack
        torch._subclasses.functional_tensor.dispatch_functionalize
        torch.utils._python_dispatch.TorchDispatchMode torch.utils._python_dispatch._disable_current_modes
    """,
    "dtensor_planner.py": """
        torch.distributed.tensor._dtensor_spec.DTensorSpec
        torch.distributed.tensor._dtensor_spec.ShardOrderEntry torch.distributed.tensor._dtensor_spec.TensorMeta
        torch.distributed.tensor._redistribute._gen_transform_infos_non_cached
        torch.testing._internal.distributed.fake_pg.FakeStore
    """,
    "dtensors.py": """
        ._local_tensor ._spec torch.distributed.tensor.placement_types._StridedShard
    """,
    "elementwise_dtensor.py": """
        ._local_tensor ._spec
    """,
    "expert_ops.py": "torch._library.effects.EffectType torch.library._register_effectful_op",
    "fake_tensors.py": """
        torch._subclasses.fake_tensor.DataDependentOutputException
        torch._subclasses.fake_tensor.DynamicOutputShapeException torch._subclasses.fake_tensor.FakeTensor
        torch._subclasses.fake_tensor.FakeTensorMode
        torch._subclasses.fake_tensor.UnsupportedFakeTensorException
        torch._subclasses.fake_tensor.UnsupportedOperatorException
    """,
    "graphs.py": """
        ._codegen ._dynamo_source ._rename ._update torch.fx._lazy_graph_module._LazyGraphModule
    """,
    "grouped_products.py": "torch.utils._python_dispatch.TorchDispatchMode",
    "group_registry.py": """
        ._device_types ._flatten ._get_backend ._timeout torch._C._distributed_c10d
        torch._C._distributed_c10d._register_process_group torch._C._distributed_c10d._resolve_process_group
        torch._C._distributed_c10d._unregister_process_group
        torch.distributed.distributed_c10d._get_default_group
        torch.distributed.distributed_c10d._get_default_store torch.distributed.distributed_c10d._set_pg_timeout
    """,
    "joint_export.py": """
        ._aot_state torch._dynamo.functional_export
        torch._dynamo.functional_export._dynamo_graph_capture_for_export
        torch._dynamo.functional_export._suggest_or_raise_constraint_violation
        torch._export.utils._compiling_state_context torch._functorch._aot_autograd.descriptors
        torch._functorch._aot_autograd.schemas.OutputType
        torch._functorch.aot_autograd.aot_export_joint_with_descriptors torch._guards.TracingContext
        torch._guards.tracing torch.export._trace._restore_state_dict
        torch.export.dynamic_shapes._check_dynamic_shapes torch.export.dynamic_shapes._combine_args
        torch.export.dynamic_shapes._process_dynamic_shapes torch.fx.graph_module._assign_attr
    """,
    "modules.py": """
        ._backward_hooks ._backward_pre_hooks ._buffers ._forward_hooks ._forward_hooks_with_kwargs
        ._forward_pre_hooks ._forward_pre_hooks_with_kwargs ._modules ._opt_called ._optimizer_step_post_hooks
        ._optimizer_step_pre_hooks ._parameters torch.compiler._is_compiling_flag
    """,
    "ops.py": """
        ._overloadname ._schema torch._C._dispatch_find_schema_or_throw torch._C._dispatch_get_all_op_names
        torch._C._get_schema torch._ops.HigherOrderOperator torch._ops.OpOverload torch._ops.OpOverloadPacket
        torch.testing._internal.common_methods_invocations.op_db
    """,
    "pytree.py": """
        torch.utils._pytree.TreeSpec torch.utils._pytree.keystr torch.utils._pytree.tree_flatten
        torch.utils._pytree.tree_flatten_with_path torch.utils._pytree.tree_leaves torch.utils._pytree.tree_map
        torch.utils._pytree.tree_map_only torch.utils._pytree.tree_structure torch.utils._pytree.tree_unflatten
        torch.utils._pytree.treespec_dumps torch.utils._pytree.treespec_loads
    """,
    "recurrent_layers.py": """
        ._dispatch_cache torch._C._get_mkldnn_enabled torch._C._set_mkldnn_enabled torch._dynamo.config
    """,
    "state_dicts.py": """
        torch.distributed.checkpoint._nested_dict.flatten_state_dict
    """,
    "symbolic_numbers.py": """
        torch._dynamo.source.ConstantSource
    """,
    "tensors.py": """
        ._cdata ._is_zerotensor ._version torch.Tensor._make_wrapper_subclass torch._C._has_storage
    """,
}
"""File of torch_interop → the private names of torch that it uses; `.name` is an attribute."""

OF_OTHERS = {
    "_ArgumentGroup": "argparse",
    "_actions": "argparse",
    "_attn_implementation": "configurations of transformers",
    "_exit": "os",
    "_fields": "named tuples",
    "_getframe": "sys",
    "_is_stateful": "models of transformers",
    "_make": "named tuples",
    "_option_string_actions": "argparse",
}
"""Private attributes that are not torch's → whose they are."""

TEXTS = {
    "torch._guards": "the name of a logger, in torch_interop",
    "torch._inductor": "an error names torch.compile's list of options",
    "torch._subclasses": "the name of a logger, in torch_interop",
    "torch._sym_sqrt": "the name of a function of sizes in graphs, in a table of dialects, which has no torch",
    "torch.distributed._functional_collectives": "spmd-translate writes it into a file that runs without spmdir",
    "torch.distributed.distributed_c10d._register_process_group": "spmd-translate writes it into the same file",
    "torch.utils._pytree": "an error names the function that registers a class of containers",
}
"""Private names of torch in texts → why they are there."""

TREES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}

REFLECTION = {"attrgetter", "delattr", "getattr", "hasattr", "setattr"}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") and part != "_" for part in name.split("."))


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file defines: functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def imported(tree: ast.AST) -> dict[str, str]:
    """Return local name → what it is in torch, of imports and of variables that stand for `torch.ops…`."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                names[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("torch.ops."):
            names[ast.unparse(node.targets[0])] = ast.unparse(node.value)
    return names


def dotted(node: ast.Attribute) -> tuple[ast.expr, str]:
    """Return what a chain of attributes begins with, and the chain."""
    parts, root = [], node
    while isinstance(root, ast.Attribute):
        parts.append(root.attr)
        root = root.value
    return root, ".".join(reversed(parts))


@cache
def everywhere() -> frozenset[str]:
    return frozenset(name for tree in TREES.values() for name in defined(tree))


@cache
def tables() -> frozenset[str]:
    """The private attributes of modules, optimizers and tensors that are no ops."""
    names = (*vars(nn.Module()), *vars(Optimizer), *dir(DTensor))
    return frozenset(name for name in names if is_private(name) and not hasattr(torch.ops.aten, name))


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a file uses."""
    names, own = imported(tree), frozenset(defined(tree))
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from (full for alias in node.names if is_private(full := f"{node.module}.{alias.name}"))
        elif isinstance(node, ast.Import):
            yield from (
                alias.name for alias in node.names if alias.name.startswith("torch.") and is_private(alias.name)
            )
        elif isinstance(node, ast.Attribute):
            root, chain = dotted(node)
            full = f"{names.get(_name(root) or '', '')}.{chain}"
            if full.startswith("torch."):
                if node not in inner and is_private(chain) and not full.startswith("torch.ops."):
                    yield full
            elif is_private(node.attr) and node.attr not in (everywhere() if _name(root) in ("self", "cls") else own):
                yield f".{node.attr}"
        elif isinstance(node, ast.Call) and _name(node.func) in REFLECTION:
            named = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from (f".{name}" for name in named if is_private(str(name)) and name not in own)
        elif isinstance(node, ast.Constant) and node.value in tables():
            yield f".{node.value}"


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of torch in the texts of a file, docstrings apart."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield from re.findall(r"\btorch(?:\.\w+)*?\._[a-z]\w*", node.value)


@cache
def used() -> dict[str, set[str]]:
    """File → the private names of torch that it uses; of files that may import torch."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in TREES.items():
        if ORDER.index(path.parts[0].removesuffix(".py")) >= ORDER.index("torch_interop"):
            found[str(path)] |= {name for name in private_names(tree) if name.removeprefix(".") not in OF_OTHERS}
    return {path: names for path, names in found.items() if names}


def test_private_names_of_torch_are_used_in_torch_interop_alone() -> None:
    elsewhere = {path: sorted(names) for path, names in used().items() if not path.startswith("torch_interop/")}
    assert not elsewhere, "use these through a function of spmdir/torch_interop"


def test_every_private_name_of_torch_is_listed() -> None:
    found = {path.removeprefix("torch_interop/"): sorted(names) for path, names in used().items()}
    assert found == {path: sorted(names.split()) for path, names in LISTED.items()}


@pytest.mark.parametrize("name", sorted(name for names in LISTED.values() for name in names.split() if name[0] != "."))
def test_the_installed_torch_has_the_name(name: str) -> None:
    module, _, attributes = name.rpartition(".")
    while True:
        try:
            owner: Any = import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            attributes = f"{last}.{attributes}"
    for attribute in attributes.split("."):
        owner = getattr(owner, attribute)


def test_private_names_of_torch_in_texts_are_listed() -> None:
    assert {name for tree in TREES.values() for name in texts(tree)} == set(TEXTS)


def test_no_listed_name_of_others_is_unused() -> None:
    attributes = {node.attr for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named = {node.value for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not set(OF_OTHERS) - attributes - named
