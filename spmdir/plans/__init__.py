"""What people call a plan → an explicit sharding plan: recipes, parallel styles, plans of Hugging Face models.

May import: core, importer, torch_interop.
Start with resolve.py, which takes any of them; recipes.py is the table of recipes and what multiplies them, styles.py
the table of styles, module_names.py what names and globs mean, activations.py what lays activations out while a model
is captured.
"""
