"""Errors, text, progress, processes and machines: what every room may use."""
