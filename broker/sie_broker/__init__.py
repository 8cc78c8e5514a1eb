"""Everything NATS, and nothing about models."""
