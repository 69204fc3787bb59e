"""Inputs: whatever a user hands in, read and checked.

``files`` opens paths, ``cells`` and ``labels`` turn any accepted object into one plain table, ``columns`` puts lists
into the order of its rows, ``matrix`` reads rows in blocks, ``ids``, ``genes``, ``vocabulary`` and ``scale`` hold the
checks. Nothing here knows a metric.
"""
