"""Nobody's client: whatever comes in, an answer goes out, and nothing of ours falls over."""
