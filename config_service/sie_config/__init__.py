"""The catalogue: model specs, their validation and their one writer."""
