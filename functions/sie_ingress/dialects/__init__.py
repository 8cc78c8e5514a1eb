"""Dialects: the requests, answers and errors of OpenAI's, Cohere's, Jina's and text-embeddings-inference's clients.

Each has a pure module of its own; ``speaking`` serves them all, the same way as our own routes.
"""
