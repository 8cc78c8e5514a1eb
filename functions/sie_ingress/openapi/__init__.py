"""The API as a document: ``GET /openapi.json`` and, for people, ``GET /docs``. No work comes this way."""
