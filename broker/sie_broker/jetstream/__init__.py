"""The broker on NATS JetStream: streams, consumers, deliveries, buckets, payloads. All of nats-py is used here."""
