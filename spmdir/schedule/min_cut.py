"""Find a minimum cut of a network with integer capacities.

Example: edges source → a of capacity 3, a → sink of 2, source → sink of 1. The minimum cut has capacity 3: it cuts
a → sink and source → sink, and the nodes on the side of the source are {source, a}.

Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks", 1970. Integers make the result
exact. Networks have some hundred nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

INFINITE = 1 << 62
"""The capacity of an edge that a minimum cut never cuts."""


def minimum_cut(node_count: int, edges: Iterable[tuple[int, int, int]], source: int, sink: int) -> set[int]:
    """Return the nodes on the source's side of a minimum cut. Of several minimum cuts, that with the fewest such nodes.

    Args:
        node_count: the number of nodes. They are numbered from 0.
        edges: (from, to, capacity). A cut consists of the edges from the source's side to the sink's side. The capacity
            of some cut must be below `INFINITE`.
    """
    network = _Network(node_count)
    for start, end, capacity in edges:
        if capacity > 0:
            network.add_edge(start, end, capacity)
    while (levels := network.find_levels(source))[sink] >= 0:
        next_edge = [0] * node_count
        while network.push_flow(source, sink, levels, next_edge):
            pass
    return {node for node, level in enumerate(levels) if level >= 0}


class _Network:
    """The residual network: the remaining capacity of each edge. Edge `e ^ 1` is the reverse of edge `e`.

    Attributes:
        edges: for each node, the edges that begin at it.
        edge_end: for each edge, the node at its end.
        capacity: for each edge, its remaining capacity.
    """

    def __init__(self, nodes: int):
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.edge_end: list[int] = []
        self.capacity: list[int] = []

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge, and its reverse without capacity."""
        self.edges[start].append(len(self.edge_end))
        self.edges[end].append(len(self.edge_end) + 1)
        self.edge_end += end, start
        self.capacity += capacity, 0

    def find_levels(self, source: int) -> list[int]:
        """Return the distance of each node from the source in edges with capacity; −1 if there is no path."""
        levels = [-1] * len(self.edges)
        levels[source] = 0
        queue = [source]
        for node in queue:
            for edge in self.edges[node]:
                end = self.edge_end[edge]
                if self.capacity[edge] and levels[end] < 0:
                    levels[end] = levels[node] + 1
                    queue.append(end)
        return levels

    def push_flow(self, source: int, sink: int, levels: list[int], next_edge: list[int]) -> bool:
        """Push as much flow as possible along one shortest path; return whether there is one.

        Args:
            levels: the result of `find_levels`.
            next_edge: for each node, the number of its edges that are known not to lead to the sink. Updated.
        """
        path: list[int] = []
        node = source
        while node != sink:
            edges = self.edges[node]
            while next_edge[node] < len(edges):
                edge = edges[next_edge[node]]
                if self.capacity[edge] and levels[self.edge_end[edge]] == levels[node] + 1:
                    break
                next_edge[node] += 1
            else:  # no edge of the node leads to the sink: go back
                if not path:
                    return False
                node = self.edge_end[path.pop() ^ 1]
                next_edge[node] += 1
                continue
            path.append(edge)
            node = self.edge_end[edge]
        flow = min(self.capacity[edge] for edge in path)
        for edge in path:
            self.capacity[edge] -= flow
            self.capacity[edge ^ 1] += flow
        return True
