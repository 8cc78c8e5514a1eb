"""The catalogue in the config bucket: entries, state, the one writer, its readers, and who is told."""
