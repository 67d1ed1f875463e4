"""Operators as several others that have kernels."""
