"""`PluginSet`: the plug-ins of a pipeline, and all that they define."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spmdir.pipeline.pass_table import PASSES, PassTable
from spmdir.plugins import Plugin, extended_rules, installed_plugins
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import planned_collectives
from spmdir.reshard.topology import Topology

if TYPE_CHECKING:
    from spmdir.rewrites.rewrite_conditions import Test
    from spmdir.rewrites.terms import Rewrite
    from spmdir.rules.rule_set import RuleSet


class PluginSet(tuple[Plugin, ...]):
    """An ordered set of plug-ins. Pipelines with other steps share it, and so the files that were read for it."""

    def with_passes(self, names: Iterable[str]) -> PluginSet:
        """Return these plug-ins, and installed plug-ins with passes in `names` that are still unknown."""
        missing = set(names).difference(self.passes)
        if not missing:
            return self
        return PluginSet((*self, *(plugin for plugin in installed_plugins() if not missing.isdisjoint(plugin.passes))))

    @functools.cached_property
    def passes(self) -> PassTable:
        """Pass name → its class or `module:class`. A pass of a plug-in replaces one with the same name."""
        return {**PASSES, **{name: kind for plugin in self for name, kind in plugin.passes.items()}}

    @property
    def rules(self) -> RuleSet:
        """The rules in force, extended by those of the plug-ins."""
        return self._extended or extended_rules(())

    @functools.cached_property
    def _extended(self) -> RuleSet | None:
        """The extended rules, created once because a RuleSet caches; None if no plug-in has rules."""
        return extended_rules(self) if any(plugin.rules or plugin.strategies for plugin in self) else None

    @functools.cached_property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """The rewrites of the plug-ins for fuse-collectives.

        Raises:
            ParseError: one is malformed.
        """
        files = [file for plugin in self for file in plugin.rewrites]
        if not files:
            return ()
        from spmdir.rewrites.rewrite_text import parse_rewrites  # imports lark, which few pipelines need

        return tuple(rewrite for file in files for rewrite in parse_rewrites(file.text, file.path))

    @functools.cached_property
    def conditions(self) -> dict[str, Test]:
        """Name → a condition of rewrites."""
        if all(plugin.module is None for plugin in self):
            return {}
        from spmdir.rewrites.rewrite_conditions import RewriteCondition

        return {condition.name: condition for plugin in self for condition in plugin.values(RewriteCondition)}

    @functools.cached_property
    def topologies(self) -> dict[str, Topology]:
        """Name → machine."""
        return {topology.name: topology for plugin in self for topology in plugin.values(Topology)}

    @property
    def collectives(self) -> tuple[CollectiveSpec, ...]:
        """The collectives that the planner may choose."""
        return planned_collectives(spec for plugin in self for spec in plugin.values(CollectiveSpec))
