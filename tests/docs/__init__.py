"""The documentation, held to what it says."""
