"""The reshard planner: legal steps between two shardings, the cost of each, the cheapest plan, and a lower bound.

May import: core.
Start with plan.py (the search over steps.py), then cost.py.
"""
