"""The search of `propagate` over a mesh, with the memory and the times of trial runs."""
