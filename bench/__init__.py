"""Measured tables, printed and never asserted. ``python -m bench`` runs them all."""
