"""Weights: from a spec's sources to files on this machine."""
