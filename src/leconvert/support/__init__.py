"""Errors, text, progress, processes and machines, for all rooms."""
