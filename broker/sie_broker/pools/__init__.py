"""Pools: named capacity with a lease, and which worker works for which."""
