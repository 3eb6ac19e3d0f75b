"""The source tree: imports point one way between packages and between files, and a file name means one thing.

Imports under TYPE_CHECKING and inside functions count; the lazy names of spmdir/__init__.py are texts and do not.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = (
    "core", "pipelined", "placements", "rules", "reshard", "search", "schedule", "dialects", "plugins", "analysis",
    "transforms", "rewrites", "pipeline", "passes", "shardy", "torch_interop", "lowering", "simulator", "importer",
    "read_back", "plans", "runtime", "serving", "report", "sweep", "explanation", "pictures", "language_server",
    "checking", "errors", "placement", "checkpoint", "testing", "__init__", "tools", "universe",
)  # fmt: skip
"""The packages of spmdir; each imports from those before it alone. `__init__` is spmdir itself: its
names, as those before it are names of a task; stubs beside them say where these are."""

SAME_NAME = {
    "arguments": "checks of Python arguments in core; the arguments of aten ops in dialects",
    "checkpoint": "what it does in runtime; its public names",
    "collectives": "for each collective its spec in reshard, its op in dialects, its emitter in lowering",
    "conditions": "of symbolic sizes in core; under which the planner's steps are legal in reshard",
    "errors": "what they are in core; their public names",
    "exchange": "the generalised all-to-all: its plan in reshard, its emitter in lowering",
    "expressions": "of symbolic sizes in core; of the rule language in rules",
    "halo": "the halo exchange: its op in dialects, its emitter in lowering",
    "locations": "the call stacks of fx nodes in importer; the text of locations in dialects",
    "memory": "what is live in an order of tasks in schedule; the report of it in report",
    "parser": "of symbolic sizes in core; of rules in rules",
    "program": "what is imported in importer; the program of one rank as a scheduler sees it in schedule",
    "reductions": "what partial placements reduce by in core; how reductions are emitted in lowering",
    "replacement": "of collectives in rewrites; of ops by expansions in rules",
    "schedule": "the pass that schedules in passes; the report of times in report",
    "simulate": "the times of an order of tasks in schedule; the values of all ranks in simulator",
    "split_backward": "a local program into two in transforms; the pass that splits the backward of stages in passes",
    "spmd": "the dialect in dialects; the command that answers questions in tools",
    "values": "of the IR in dialects; random ones in checking",
}
"""Names that several files of spmdir have, and what each of the files is."""


SAME_CLASS = {
    "Collective": "the base of ops in dialects; a term in rewrites",
    "Condition": "of symbolic sizes in core; a node of the syntax tree in rules; a term in rewrites",
    "Function": "of symbolic sizes in core; a node of the syntax tree in rules; a term in rewrites",
    "Layout": "of an activation in core; the factors of a call's tensors in rules; strides in torch_interop",
    "Program": "what is imported in importer; the program of one rank as a scheduler sees it in schedule",
    "Reduction": "what partial placements reduce by in core; how one is emitted in lowering; of local sums in runtime",
    "Result": "a node of the syntax tree in rules; a result of a program in runtime",
    "Share": "a part of a shard in reshard; the part of some ops in the costs of a program in report",
    "Sizes": "symbolic ones in core; those of a collective's tensors in reshard",
    "Step": "of a plan in reshard; of a pipeline in pipeline; an op of the problem in search",
    "Value": "of an expansion in rules; a term in rewrites",
    "Verdict": "of the check of a rule, and of that of a placement, in checking",
}
"""Public classes of which several files of spmdir have one of the name, and what each is."""

BY_NAME = {
    "spmdir.core.placement.base": "the placements that spmdir ships are imported once a text names one",
    "spmdir.reshard.collectives": "emitters of the shipped collectives are imported once a program is lowered",
    "spmdir.pipeline.pass_table": "a pass is imported when a pipeline first has it",
}
"""Modules that name modules of later packages in a text, and why."""

ACROSS = {"benchmarks", "cuda", "docs", "fuzz", "golden", "models", "packaging", "reference"}
"""Folders of tests that cut across packages."""

SCENARIOS = """
    checking/placements/test_laws checking/rules/test_pairs core/test_sub_axes core/test_symbolic_expressions
    core/test_wrong_arguments importer/test_errors importer/test_exported importer/test_in_place importer/test_models
    importer/test_optimizers importer/test_random_streams importer/test_shardings importer/test_text
    importer/test_traced language_server/test_rule_layout lowering/test_every_reshard lowering/test_gloo
    lowering/test_indexing lowering/test_payloads lowering/test_placements lowering/test_placements_gloo
    lowering/test_reshards_gloo lowering/test_sub_axes passes/test_absent_results passes/test_local_types
    passes/test_lossy_steps passes/test_names passes/test_precision passes/test_step_states passes/test_whole_program
    pipeline/test_state_is_text placements/test_fused_projections plans/test_fused_qkv
    placements/test_packed_values placements/test_local_types placements/test_offered placements/test_programs
    placements/test_ring_attention placements/test_ring_training placements/test_rings placements/test_values
    reshard/test_every_pair reshard/test_large_meshes reshard/test_not_slower_than_dtensor
    reshard/test_renamed_collectives reshard/test_simulation
    rules/local/test_empty_shards rules/local/test_running_totals rules/strategies/test_exactness
    rules/strategies/test_left_out rules/strategies/test_plugin_strategies rules/test_admission rules/test_attention
    rules/test_core_coverage rules/test_errors rules/test_losses rules/test_random rules/test_schemas
    rules/test_soundness runtime/test_dynamic_shapes runtime/test_matrix_optimizers
    runtime/test_pipelined_stages runtime/test_python_state runtime/test_rank_group
    runtime/test_returned_values runtime/test_wrong_calls search/test_exhaustive simulator/test_symbolic_sizes
    test_determinism
    read_back/test_parallel_styles read_back/test_round_trip read_back/test_training_steps
    serving/test_cache_layouts serving/test_server
    shardy/test_round_trip
    test_hypothesis_profile test_prompt test_public_names test_source_tree tools/test_limits tools/test_malformed_text
    tools/test_import_rank tools/test_page tools/test_trust_pt2 tools/test_trust_text torch_interop/test_private_names
"""
"""Tests of what several modules do together; every other test file has the name of the module or package it tests."""


@cache
def imports() -> dict[str, set[str]]:
    """Module of spmdir → the modules of spmdir that it imports."""
    files = {module_name(path): path for path in (ROOT / "spmdir").rglob("*.py")}
    return {name: {found for found in imported(path, files) if found != name} for name, path in files.items()}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else node.module


def package_of(name: str) -> str:
    return [*name.split("."), "__init__"][1]


def test_the_order_names_every_package() -> None:
    assert {package_of(name) for name in imports()} == set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_those_before_it(package: str) -> None:
    allowed = ORDER[: ORDER.index(package) + 1]
    for name, targets in imports().items():
        if package_of(name) == package:
            wrong = sorted(target for target in targets if package_of(target) not in allowed)
            assert not wrong, f"{name} imports {', '.join(wrong)}"


@pytest.mark.parametrize("package", [name for name in ORDER if (ROOT / "spmdir" / name).is_dir()])
def test_a_package_says_what_it_may_import_and_where_to_start_reading(package: str) -> None:
    folder = ROOT / "spmdir" / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    start = re.search(r"^May import: .*^Start with (.*)", text, re.MULTILINE | re.DOTALL)
    assert start, f"spmdir/{package}/__init__.py says neither"
    may = re.search(r"^May import: ([^.;]*)", text, re.MULTILINE)
    assert may
    known = {name for name in re.findall(r"\w+", may[1].replace("names of spmdir", "__init__")) if name in ORDER}
    real = {package_of(target) for name, found in imports().items() if package_of(name) == package for target in found}
    assert known - {package} == real - {package}, f"spmdir/{package} imports {', '.join(sorted(real - {package}))}"
    for file in re.findall(r"[\w/]+\.(?:py|rules)", start[1]):
        assert (folder / file).exists(), f"spmdir/{package} has no {file}"


def test_no_files_import_each_other() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_folders_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for name, targets in imports().items():
        graph.setdefault(folder_of(name), set()).update({folder_of(target) for target in targets} - {folder_of(name)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def folder_of(name: str) -> str:
    """The folder of a module; a file next to the packages is a folder of its own."""
    is_folder = name.count(".") < 2 or (ROOT / name.replace(".", "/")).is_dir()
    return name if is_folder else name.rpartition(".")[0]


def test_analyses_change_no_program() -> None:
    changes = re.compile(
        r"\bRewriter\b|\.(attributes|properties)(\[[^\]]*\] = |\.pop\()|\.(detach|replace_all_uses_with|erase)\("
    )
    files = (ROOT / "spmdir" / "analysis").rglob("*.py")
    assert not [str(file.relative_to(ROOT)) for file in files if changes.search(file.read_text())]


def test_files_of_one_name_are_listed_with_what_each_is() -> None:
    counts = Counter(path.stem for path in (ROOT / "spmdir").rglob("*.py") if path.stem != "__init__")
    assert {stem for stem, count in counts.items() if count > 1} == set(SAME_NAME)


def test_public_classes_of_one_name_are_listed_with_what_each_is() -> None:
    trees = [ast.parse(path.read_text()) for path in (ROOT / "spmdir").rglob("*.py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1 and not name.startswith("_")} == set(SAME_CLASS)


def test_what_is_listed_of_equal_names_names_the_packages_of_all() -> None:
    packages: dict[str, set[str]] = {name: set() for name in (*SAME_NAME, *SAME_CLASS)}
    for path in (ROOT / "spmdir").rglob("*/*.py"):
        classes = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}
        for name in {path.stem, *classes} & set(packages):
            packages[name].add(package_of(module_name(path)))
    for name, text in {**SAME_NAME, **SAME_CLASS}.items():
        assert set(re.findall(r"\bin (\w+)", text)) & set(ORDER) == packages[name], name


def test_modules_named_in_texts_are_of_earlier_packages_or_listed() -> None:
    files = {module_name(path): path for path in (ROOT / "spmdir").rglob("*.py")}
    naming = set()
    for name, path in files.items():
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        named = {text.partition(":")[0] for text in texts if isinstance(text, str)} & set(files)
        later = {text for text in named if text.count(".") > 1}
        if any(ORDER.index(package_of(text)) > ORDER.index(package_of(name)) for text in later):
            naming.add(name)
    assert naming == set(BY_NAME)


def test_tests_mirror_the_packages() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py")}
    mirrored = {folder for folder in folders if not ACROSS & set(folder.parts)}
    assert not sorted(str(folder) for folder in mirrored if not (ROOT / "spmdir" / folder).is_dir())


def test_a_test_file_is_named_after_what_it_tests_or_a_listed_scenario() -> None:
    paths = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    unnamed = {
        str(path.with_suffix(""))
        for path in paths
        if not ACROSS & set(path.parts) and path.stem.removeprefix("test_") not in names_in(path.parts[0])
    }
    assert unnamed == set(SCENARIOS.split())


@cache
def names_in(package: str) -> set[str]:
    """The names of modules and packages in a package of spmdir, of all for a file beside the folders."""
    folder = ROOT / "spmdir" / package
    inside = folder if folder.is_dir() else ROOT / "spmdir"
    return {package, *(path.stem for path in inside.rglob("*") if path.suffix == ".py" or path.is_dir())}
