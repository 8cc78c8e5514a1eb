"""The one version number of the distribution; hatchling reads it at build time."""

__version__ = "0.1.0"
