"""What a partitioned program costs, told to people: communication by kind and axis.

May import: everything below.
Start with communication.py.
"""
