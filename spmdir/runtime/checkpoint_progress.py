"""What `torch.distributed.checkpoint` writes and reads, told to whoever shows progress."""

from __future__ import annotations

import io
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, WriteItem

from spmdir.core.progress import say


class ToldSavePlanner(DefaultSavePlanner):
    """The planner by default, which says what it writes."""

    _written = 0

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        self._written += 1
        say("saving {} ({} of {})", write_item.index.fqn, self._written, len(self.plan.items))
        return super().resolve_data(write_item)


class ToldLoadPlanner(DefaultLoadPlanner):
    """The planner by default, which says what it reads."""

    _read = _all = 0

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        self._all = len(new_plan.items)
        return super().finish_plan(new_plan)

    def resolve_tensor(self, read_item: ReadItem) -> Any:
        self._read += 1
        say("loading {} ({} of {})", read_item.dest_index.fqn, self._read, self._all)
        return super().resolve_tensor(read_item)
