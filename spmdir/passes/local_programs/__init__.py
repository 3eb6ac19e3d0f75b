"""Local programs: the forms ops take on one device, and the reconstruction of the global program for verification.

May import: whatever passes may.
Start with local_forms.py.
"""
