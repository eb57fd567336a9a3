"""The package version, read by the build and written into every record."""

__version__ = "0.2.0"
