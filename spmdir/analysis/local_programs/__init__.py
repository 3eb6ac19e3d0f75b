"""Programs of one rank: the forms that ops take on it, and the global program that they compute.

Start with replace_by_local_form.py and globalize.py, which undoes it.
"""
