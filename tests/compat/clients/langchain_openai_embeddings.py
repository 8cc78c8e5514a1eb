"""LangChain's ``OpenAIEmbeddings``, which sends arrays of OpenAI's token ids: its vectors, as JSON.

langchain_openai_embeddings.py URL MODEL
"""

import asyncio
import json
import sys

from langchain_openai import OpenAIEmbeddings

URL, MODEL = sys.argv[1:3]
TEXTS = ["A cat sits.", "Ein Kätzchen ruht \N{SLIGHTLY SMILING FACE}", "Rates rose. " * 200]


def main():
    keys = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL}
    tokens, texts = OpenAIEmbeddings(**keys), OpenAIEmbeddings(**keys, check_embedding_ctx_length=False)
    assert tokens.check_embedding_ctx_length
    print(
        json.dumps(
            {
                "texts": TEXTS,
                "tokens": tokens.embed_documents(TEXTS),
                "query": tokens.embed_query(TEXTS[0]),
                "strings": texts.embed_documents(TEXTS),
                "async": asyncio.run(tokens.aembed_documents(TEXTS)),
            }
        )
    )


main()
