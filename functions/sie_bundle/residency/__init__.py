"""Residency: which models are in which memory, how they get there and which leave."""
