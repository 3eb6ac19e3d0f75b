"""Conversion of recipes, parallel styles and plans of Hugging Face models to an explicit sharding plan.

May import: core, importer, torch_interop.
Start with resolve.py, which accepts all of them. recipes.py has the table of recipes and their products, and styles.py
the table of styles. module_names.py resolves names and globs. activations.py constrains activations while a model is
captured.
"""
