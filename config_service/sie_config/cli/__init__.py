"""The verbs of ``sie config`` that change the catalogue or compare it with a folder."""
