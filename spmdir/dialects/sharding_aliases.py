"""Shardings as text: each is defined once, behind the mesh, and arguments name it, as in `#dp_S0_tp_S1`."""

from __future__ import annotations

import re

from spmdir.dialects.attributes import ShardingAttr


class ShardingAliases:
    """The aliases of one text: sharding → what names it."""

    def __init__(self) -> None:
        self._names: dict[ShardingAttr, str] = {}

    def text(self, sharding: ShardingAttr) -> str:
        """Return `#dp_S0` for `dp: S(0)`, `#replicated` for none; one of those that would be equal has a number."""
        if sharding not in self._names:
            plain = re.sub(r"[()]", "", str(sharding.data))
            name = first = "#" + (re.sub(r"\W+", "_", plain, flags=re.ASCII) or "replicated")
            taken, number = set(self._names.values()), 0
            while name in taken:
                number += 1
                name = f"{first}_{number}"
            self._names[sharding] = name
        return self._names[sharding]

    def definitions(self) -> str:
        """Return a line for each alias, in the order of their first use."""
        return "".join(f"{name} = {sharding}\n" for sharding, name in self._names.items())
