"""LangChain's ``HuggingFaceEndpointEmbeddings`` as it asks a server of TEI: its vectors, as JSON.

langchain_huggingface_embeddings.py URL MODEL
"""

import asyncio
import json
import sys

from langchain_huggingface import HuggingFaceEndpointEmbeddings

URL, MODEL = sys.argv[1:3]
TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]


def main():
    # It takes no URL for a model, but passes one on.
    embeddings = HuggingFaceEndpointEmbeddings(model=MODEL, model_kwargs={"model": f"{URL}/tei/{MODEL}"})
    print(
        json.dumps(
            {
                "documents": embeddings.embed_documents(TEXTS),
                "query": embeddings.embed_query(TEXTS[0]),
                "async": asyncio.run(embeddings.aembed_documents(TEXTS)),
            }
        )
    )


main()
