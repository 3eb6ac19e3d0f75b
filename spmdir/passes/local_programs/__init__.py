"""Local programs: the forms ops take on one device, the reconstruction of the global program for verification, and the
two parts of a program that has a backward.

May import: whatever passes may.
Start with local_forms.py.
"""
