"""The API as a document: ``GET /openapi.json`` and the page for people, ``GET /docs``. No request for work comes here."""
