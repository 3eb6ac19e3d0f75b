"""Aliases of shardings in printed modules, such as `#dp_S0_tp_S1`. Each alias is defined once, after the mesh."""

from __future__ import annotations

import re

from spmdir.dialects.attributes import ShardingAttr


class ShardingAliases:
    """The aliases of one text: sharding → alias."""

    def __init__(self) -> None:
        self._names: dict[ShardingAttr, str] = {}

    def text(self, sharding: ShardingAttr) -> str:
        """Return `#dp_S0` for `dp: S(0)`, and `#replicated` for replicated; a number distinguishes equal aliases."""
        if sharding not in self._names:
            sharding_text = re.sub(r"[()]", "", str(sharding.data))
            name = base_name = "#" + (re.sub(r"\W+", "_", sharding_text, flags=re.ASCII) or "replicated")
            used_names, suffix = set(self._names.values()), 0
            while name in used_names:
                suffix += 1
                name = f"{base_name}_{suffix}"
            self._names[sharding] = name
        return self._names[sharding]

    def definitions(self) -> str:
        """Return one line per alias, in the order of first use."""
        return "".join(f"{name} = {sharding}\n" for sharding, name in self._names.items())
