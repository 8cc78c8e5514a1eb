"""What the official ``openai`` client reads of a server's models: ``openai_models.py URL MODEL``."""

import json
import sys

import openai

URL, MODEL = sys.argv[1:]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
one = client.models.retrieve(MODEL)
try:
    client.models.retrieve("org/nothing")
except openai.NotFoundError as error:
    missing = [error.code, str(error)]
listed = [model.id for model in client.models.list()]
alias = client.models.retrieve("house").id
print(json.dumps({"listed": listed, "one": [one.id, one.object, one.owned_by], "alias": alias, "missing": missing}))
