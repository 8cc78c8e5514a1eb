"""One machine as the platform: starts every process and scales bundles 0..N."""
