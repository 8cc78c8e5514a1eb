"""The platform on a real Knative: what is deployed, asked and broken there."""
