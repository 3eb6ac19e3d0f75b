"""The program of one rank as a schedule sees it, and changes of it unit by unit.

May import: whatever passes may.
"""
