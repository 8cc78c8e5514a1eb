"""Kubernetes objects: the overlays as kustomize builds them, and NATS with the rights that they give."""
