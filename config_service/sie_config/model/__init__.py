"""What a model is: the spec, what it may say, what is wrong with one, and what differs between two."""
