"""The one version number of the distribution; hatchling reads it at build time."""

__version__ = "0.1.0"

PROTOCOL_VERSION = "0.10.1"
"""The version of the published clients whose wire protocol this speaks."""
