"""``/v1/configs``: reads and writes of the catalogue over HTTP."""
