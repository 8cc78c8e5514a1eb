"""The bundle function: pull, tokenize, batch, forward, postprocess, reply."""
