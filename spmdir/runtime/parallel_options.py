"""The keyword arguments that all front doors to real ranks share: one list, one documentation, one check."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import attrs
from torch.distributed.device_mesh import DeviceMesh

from spmdir.core.arguments import DIRECTORY, FLAG, MISSING_RULE, OUT_SHARDINGS, instance, unknown_name
from spmdir.core.placement.sharding import ShardingLike
from spmdir.pipeline.pipeline import PIPELINE, Pipeline

_CHECKS = {
    "out_shardings": OUT_SHARDINGS,
    "local_inputs": FLAG,
    "dynamic_shapes": instance(
        Mapping, tuple, list, expected="dimensions by argument, as of torch.export.export"
    ).optional,
    "missing_rule": MISSING_RULE,
    "sync_state": FLAG,
    "pipeline": PIPELINE,
    "cache": DIRECTORY,
    "compile": instance(bool, Mapping, expected="True, False or a dict of Inductor's options"),
}


class ParallelOptions(TypedDict, total=False):
    """The keyword arguments of `parallelize` and `shard_module`; `torch.compile(…, backend="spmdir")` takes some.

    Attributes:
        out_shardings: one entry an output; None for one that comes back replicated. Others come back as local shards.
        device_mesh: a torch DeviceMesh like `mesh`. If None, it is made over the default process group, on CUDA if
            the group has NCCL, else on the CPU.
        local_inputs: whether calls are given this rank's shards of the inputs instead of global inputs. The gradient of
            an output that comes back as a shard is then that of this rank's loss, of which the mean is taken.
        dynamic_shapes: which dimensions of the arguments may have other sizes in calls, as for torch.export.export; of
            a step, one entry an argument. Shardings are decided once, for the example inputs; each choice of sizes is
            lowered when it first occurs. Sizes of 0 and 1, which torch traces apart, have programs of their own.
        missing_rule: as for `import_fx`.
        sync_state: whether parameters, buffers and state are taken from the first rank instead of being compared.
        pipeline: what is run on the program, with its plug-ins. If None, the standard one and `schedule`, for the
            topology `cpu-gloo` where ranks run on the CPU, else for the default one. The steps up to `propagate` run
            once, on the first rank, the others on each and for each choice of sizes.
        cache: a directory in which the first rank keeps the decided program as text, and from which it takes it when
            the same program is to be decided again; made if it is not there.
        compile: whether the first call compiles this rank's program by Inductor, as `compile_program` does; a dict of
            options says that it does, and how.
    """

    out_shardings: Sequence[ShardingLike | None] | None
    device_mesh: DeviceMesh | None
    local_inputs: bool
    dynamic_shapes: Any
    missing_rule: Literal["warn", "error"]
    sync_state: bool
    pipeline: Pipeline | str | None
    cache: str | os.PathLike[str] | None
    compile: bool | Mapping[str, Any]


@attrs.frozen(kw_only=True)
class ChosenOptions:
    """The values of all `ParallelOptions`."""

    out_shardings: Sequence[ShardingLike | None] | None = None
    device_mesh: DeviceMesh | None = None
    local_inputs: bool = False
    dynamic_shapes: Any = None
    missing_rule: Literal["warn", "error"] = "warn"
    sync_state: bool = False
    pipeline: Pipeline | str | None = None
    cache: str | os.PathLike[str] | None = None
    compile: bool | Mapping[str, Any] = False

    @classmethod
    def of(cls, options: ParallelOptions) -> ChosenOptions:
        """Return the values of all options, of which `options` gives some.

        Raises:
            SpmdirError: there is no option of a name.
        """
        check_names(options, cls.__annotations__)
        return cls(**options)

    def check(self) -> None:
        """Raise SpmdirError for a value of the wrong type."""
        for name, kind in _CHECKS.items():
            kind.check(name, getattr(self, name))

    @property
    def inductor(self) -> dict[str, Any] | None:
        """The options of Inductor; None to run graphs as they are."""
        if isinstance(self.compile, bool):
            return {} if self.compile else None
        return dict(self.compile)


def check_names(options: Mapping[str, Any], known_names: Mapping[str, Any] | Sequence[str]) -> None:
    """Raise SpmdirError if `options` has a name that is not `known`."""
    for name in options:
        if name not in known_names:
            raise unknown_name("unknown option", name, list(known_names), ("plan", "example_kwargs"))
