"""Rewrites of Programs, one to a file, and the pipelines made of them."""
