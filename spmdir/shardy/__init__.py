"""The text of Shardy's dialect `sdy`: written from a program of the IR, and read back into one.

May import: core, rules, dialects, analysis; never torch.
Start with tensor_sharding.py, which converts shardings, then read export_sdy.py and import_sdy.py.
"""
