"""Language support in editors: errors, hovers, definitions, costs, completions, formatting, and lexers.

The functions take a text, which need not parse, and return plain values. Only `server.py` uses the protocol.

May import: core, rules, reshard, dialects, analysis, rewrites, pipeline, report.
Start with document.py and server.py.
"""
