"""``huggingface_hub``'s ``InferenceClient`` as it asks a server of TEI: what it makes of the answers, as JSON.

huggingface.py URL DENSE CLASSIFIER
"""

import asyncio
import json
import sys

from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

URL, DENSE, CLASSIFIER = sys.argv[1:4]
TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]


def error(call):
    try:
        call()
    except HfHubHTTPError as refused:
        return {"status": refused.response.status_code, "body": refused.response.json()}
    raise AssertionError("it was not refused")


async def asynchronous(base):
    return (await AsyncInferenceClient(base).feature_extraction(TEXTS)).tolist()


def main():
    base = f"{URL}/tei/{DENSE}"
    client = InferenceClient(base)
    labels = InferenceClient(f"{URL}/tei/{CLASSIFIER}").text_classification("What is a dog?")
    print(
        json.dumps(
            {
                "vectors": client.feature_extraction(TEXTS).tolist(),
                "of one": client.feature_extraction(TEXTS[0]).tolist(),
                "at its route": InferenceClient().feature_extraction(TEXTS, model=f"{base}/embed").tolist(),
                "not normalized": client.feature_extraction(TEXTS, normalize=False).tolist(),
                "async": asyncio.run(asynchronous(base)),
                "similarity": client.sentence_similarity(TEXTS[0], other_sentences=TEXTS),
                "at its route too": InferenceClient(f"{base}/similarity").sentence_similarity(TEXTS[0], TEXTS),
                "label": [labels.label, labels.score]
                if hasattr(labels, "label")
                else [[e.label, e.score] for e in labels],
                "errors": {
                    "empty": error(lambda: client.feature_extraction("")),
                    "no model": error(lambda: InferenceClient(f"{URL}/tei/no/such").feature_extraction("a")),
                    "not named": error(lambda: InferenceClient(f"{URL}/embed").feature_extraction("a")),
                },
            }
        )
    )


main()
