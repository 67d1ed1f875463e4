"""Rewrites of what a target computes wrongly or lacks, by the name that the target rows call them.

Importing this package registers them all.
"""
