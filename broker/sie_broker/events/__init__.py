"""CloudEvents: their formats and bindings, requests and results as events, and the sinks results are sent to."""
