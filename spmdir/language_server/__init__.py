"""What editors are told of our texts: mistakes, meanings, places, costs, completions; words for highlighters.

Functions from a text to plain values; `server.py` alone speaks the protocol. They work on texts that do not parse.

May import: core, rules, reshard, dialects, analysis, rewrites, pipeline, report.
Start with document.py and server.py.
"""
