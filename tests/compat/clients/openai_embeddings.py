"""The official ``openai`` client, synchronous and not: what it makes of the server's answers, as JSON.

openai_embeddings.py URL MODEL [cold TRIES]
"""

import asyncio
import json
import sys

import openai

URL, MODEL = sys.argv[1:3]
TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]
NAMES = [MODEL.upper(), MODEL.rpartition("/")[2], f"default:/{MODEL}", f"{MODEL}:default"]
KEYS = {"base_url": f"{URL}/v1", "api_key": "none"}


def vectors(found):
    assert found.object == "list" and found.model and found.usage.total_tokens > 0
    assert [entry.index for entry in found.data] == list(range(len(found.data)))
    return [entry.embedding for entry in found.data]


def error(call):
    try:
        call()
    except openai.APIStatusError as refused:
        return {
            "class": type(refused).__name__,
            "status": refused.status_code,
            "code": refused.code,
            "param": refused.param,
            "type": refused.type,
            "message": refused.message,
        }
    raise AssertionError("it was not refused")


def warm(client):
    def create(**fields):
        return client.embeddings.create(**({"model": MODEL} | fields))

    many = create(input=[f"text {number}" for number in range(2048)])
    return {
        "by default": vectors(create(input=TEXTS)),
        "float": vectors(create(input=TEXTS, encoding_format="float")),
        "one": vectors(create(input=TEXTS[0])),
        "tokens": vectors(create(input=[[32, 8415, 23874, 13], [32, 8415, 23874, 13]])),
        "one array": vectors(create(input=[32, 8415, 23874, 13])),
        "usage": create(input=TEXTS).usage.model_dump(),
        "many": [len(many.data), many.usage.prompt_tokens],
        "queries": vectors(create(input=TEXTS, extra_body={"input_type": "query"})),
        "models": [model.id for model in client.models.list()],
        "by other names": [len(create(model=name, input="a").data[0].embedding) for name in NAMES],
        "raw": dict(client.embeddings.with_raw_response.create(model=MODEL, input="a").headers),
        "errors": {
            "empty": error(lambda: create(input="")),
            "no texts": error(lambda: create(input=[])),
            "too many": error(lambda: create(input=["a"] * 2049)),
            "no token": error(lambda: create(input=[10**6])),
            "no model": error(lambda: create(input="a", model="no/such")),
            "dimensions": error(lambda: create(input="a", dimensions=7)),
        },
    }


async def asynchronous():
    async with openai.AsyncOpenAI(**KEYS) as client:
        found = await asyncio.gather(*(client.embeddings.create(model=MODEL, input=text) for text in TEXTS))
    return [vectors(each)[0] for each in found]


def shortened(client, model):
    return vectors(client.embeddings.create(model=model, input=TEXTS, dimensions=8))


def main():
    if sys.argv[3:4] == ["cold"]:
        client = openai.OpenAI(**KEYS, max_retries=int(sys.argv[4]))
        raw = client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS)
        print(json.dumps({"cold": vectors(raw.parse()), "tries": 1 + raw.retries_taken}))
        return
    client = openai.OpenAI(**KEYS)
    found = warm(client)
    found["async"] = asyncio.run(asynchronous())
    if sys.argv[3:]:
        found["shortened"] = shortened(client, sys.argv[3])
    print(json.dumps(found))


main()
