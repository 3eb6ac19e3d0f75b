"""Rewrites of collectives: their language, their matching, and the shipped rewrites.

May import: core, rules, reshard, dialects, analysis; never torch.
Start with fuse_collectives.rewrites (the rewrites), then engine.py (match, check conditions, build, compare, replace).
"""
