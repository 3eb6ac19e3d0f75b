"""Pictures of partitioned programs: tensors with their shards, the HTML report, and files for other viewers.

May import: core, schedule, dialects, analysis, pipeline, report, explanation.
Start with visualize.py and report_data.py.
"""
