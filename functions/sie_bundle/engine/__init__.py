"""The engine: from token rows to heads' outputs, in packed batches that run back to back on one device."""
