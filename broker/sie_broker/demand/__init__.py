"""Demand: how many pods each lane should have, and the sessions that make Knative have them."""
