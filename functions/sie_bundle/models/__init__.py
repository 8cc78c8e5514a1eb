"""Models: from a checkpoint's files to an encoder with its heads, for whatever family. The engine runs them."""
