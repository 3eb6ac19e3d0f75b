"""Changes of a program that several passes, or a pass and the runtime, make; each is a function on IR.

May import: core, rules, reshard, search, schedule, dialects, analysis; never torch.
Start with replace_by_local_form.py, what localize does to an op, and layers/outline.py.
"""
