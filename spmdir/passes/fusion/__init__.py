"""What `fuse-collectives` is made of: the language of rewrites, their matching, and the rewrites themselves.

May import: whatever passes may.
Start with fuse_collectives.rewrites (the rewrites), then engine.py (match, check conditions, build, compare, replace).
"""
