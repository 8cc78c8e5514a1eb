"""The thin ingress function: parse, resolve, enqueue, await, answer."""
