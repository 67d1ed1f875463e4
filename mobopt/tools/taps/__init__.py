"""Taps: phone files that return values in between, and what a phone made of them beside the reference."""
