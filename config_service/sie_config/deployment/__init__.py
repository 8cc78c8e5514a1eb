"""Where a model is served: bundles and machine profiles as data, and the rule."""
