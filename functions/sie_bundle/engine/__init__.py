"""The engine: token rows in packed batches that run back to back on one device. Knows no files and no families."""
