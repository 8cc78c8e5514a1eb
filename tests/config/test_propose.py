"""A spec is proposed from the files that publishers write: dense vectors, prompts, lengths, licences, families."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sie_config.model import model_spec
from sie_config.model.tasks import Dense, Extract, Tasks
from sie_config.propose import Proposal, Tensor, written
from sie_sdk.errors import ConfigurationError
from tests.config.model_folders import BERT, CARD, GLINER, MODERNBERT, ROBERTA, TOKENIZER, WEIGHTS, proposed, sentence


def doubted(proposal: Proposal) -> list[str]:
    return [doubt.field for doubt in proposal.doubts]


def test_a_sentence_transformers_folder_needs_no_field_by_hand() -> None:
    tensors = {"embeddings.word_embeddings.weight": Tensor("F16", (30522, 384)), "position_ids": Tensor("I64", (512,))}
    found = proposed(sentence(), tensors=tensors)
    assert found.spec.tasks == Tasks(dense=Dense(dim=384, pooling="mean", normalize=True))
    assert (found.spec.family, found.spec.max_sequence_length, found.spec.licence) == ("bert", 256, "mit")
    assert (found.spec.parameters, found.spec.bytes) == (30522 * 384, WEIGHTS["model.safetensors"])
    assert found.spec.status == "ready" and not found.doubts and found.languages == "en, de"


def test_what_is_written_says_where_each_fact_stands_and_is_read_back_the_same() -> None:
    files = sentence(**{"config_sentence_transformers.json": {"prompts": {"query": "query: # not a comment"}}})
    found = proposed(files | {"README.md": "---\nlanguage: en\n---\n"})
    text = written.document(found, "acme/model @ r1")
    assert "# Proposed from acme/model @ r1. Languages: en." in text
    assert "#   licence: no file says it" in text
    assert "pooling: mean" in text and "# 1_Pooling/config.json" in text
    assert model_spec.parse(yaml.safe_load(text), origin="proposal") == found.spec


@pytest.mark.parametrize(
    ("said", "pooling"),
    [
        ({"pooling_mode": "lasttoken", "embedding_dimension": 384}, "last"),
        ({"pooling_mode": ["cls"], "embedding_dimension": 384}, "cls"),
        ({"pooling_mode_weightedmean_tokens": True, "word_embedding_dimension": 384}, "weighted_mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True, "word_embedding_dimension": 384}, "mean"),
        ({"word_embedding_dimension": 384}, "mean"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True, "embedding_dimension": 384}, "cls"),
    ],
)
def test_pooling_is_read_in_every_versions_words(said: dict[str, Any], pooling: str) -> None:
    found = proposed(sentence(pooling=said))
    assert found.spec.status == "ready" and found.spec.tasks.dense == Dense(dim=384, pooling=pooling)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "blocked_by"),
    [
        (sentence(pooling={"pooling_mode": "max"}), "the pooling 'max'"),
        (sentence("Pooling", pooling={"pooling_mode_mean_sqrt_len_tokens": True}), "mean_sqrt_len_tokens"),
        (sentence(pooling={"pooling_mode": ["cls", "mean"]}), "several poolings side by side: cls, mean"),
        (sentence("Pooling", "LayerNorm"), "module LayerNorm"),
        (sentence("Pooling", "Dense"), "activation tanh of a projection"),
        ({"modules.json": [{"type": "sentence_transformers.models.StaticEmbedding"}]}, "StaticEmbedding"),
        (
            {"modules.json": [{"type": "custom_st.Transformer"}], "config.json": BERT},
            "own module custom_st",
        ),
        ({"config.json": BERT | {"model_type": "brandnew", "architectures": ["BrandNewModel"]}}, "BrandNewModel"),
        ({"config.json": BERT | {"auto_map": {"AutoModel": "x--y.JinaBertModel"}}}, "own code of BertModel"),
        ({"config.json": BERT | {"model_type": "t5", "is_encoder_decoder": True}}, "encoder-decoder"),
        ({"config.json": BERT | {"vision_config": {}}}, "inputs other than text"),
        ({"config.json": BERT | {"position_embedding_type": "alibi"}}, "positions of type 'alibi'"),
        ({"config.json": BERT | {"model_type": "gemma2", "is_causal": False}}, "attention to both sides"),
        ({"config.json": BERT | {"model_type": "new", "rope_scaling": {"type": "ntk", "mixed_b": 0.5}}}, "type ntk"),
        ({"config.json": BERT | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}}, "generates"),
        ({"gliner_config.json": GLINER | {"labels_encoder": "acme/bge"}}, "GLiNERs with labels_encoder"),
        ({"gliner_config.json": GLINER | {"span_mode": "conv_share"}}, "GLiNERs with span_mode 'conv_share'"),
        ({"gliner_config.json": GLINER | {"encoder_config": {"model_type": "t5"}}}, "GLiNERs on 't5'"),
        ({"gliner_config.json": {"model_name": "acme/encoder"}}, "a description of its encoder, 'acme/encoder'"),
    ],
)
def test_what_nothing_computes_is_planned_and_says_what_it_waits_for(files: dict[str, Any], blocked_by: str) -> None:
    found = proposed(files)
    assert found.spec.status == "planned" and blocked_by in found.spec.blocked_by


@pytest.mark.parametrize(
    ("change", "length"),
    [
        ({}, 768),
        ({"max_len": 2048, "span_mode": "token_level"}, 4096),
        ({"encoder_config": {"model_type": "bert", "max_position_embeddings": 512}}, 512),
        ({"encoder_config": None, "model_name": "microsoft/deberta-v3-large"}, 768),
    ],
)
def test_a_gliner_is_ready_with_twice_as_many_tokens_as_words(change: dict[str, Any], length: int) -> None:
    found = proposed({"gliner_config.json": GLINER | change}, {"pytorch_model.bin": 100, "tokenizer.json": 9}).spec
    assert (found.family, found.status, found.bundle) == ("gliner", "ready", "")
    assert found.tasks == Tasks(extract=Extract("spans")) and found.max_sequence_length == length
    without = proposed({"gliner_config.json": GLINER | change}, {"pytorch_model.bin": 100}).spec
    assert without.status == "planned" and "tokenizer.json" in without.blocked_by


def test_a_static_model_is_planned_with_what_its_table_says() -> None:
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in STATIC]
    config = {"model_type": "model2vec", "architectures": ["StaticModel"]}
    files = {"config.json": config, "modules.json": modules, "tokenizer_config.json": {}}
    found = proposed(files, tensors={"embeddings": Tensor("F32", (29528, 256))}).spec
    assert found.tasks.dense == Dense(dim=256) and found.max_sequence_length == 0
    assert found.status == "planned" and "StaticEmbedding" in found.blocked_by and "lies in" not in found.blocked_by


STATIC = (("StaticEmbedding", "."), ("Normalize", "1_Normalize"))


@pytest.mark.parametrize(
    ("sizes", "blocked_by"),
    [
        ({"model.fp16.safetensors": 1, "tokenizer.json": 1}, "there is model.fp16.safetensors"),
        ({"onnx/model.onnx": 1, "tokenizer.json": 1}, "weights as model.safetensors"),
        ({"model.safetensors": 1, "vocab.txt": 1}, "a tokenizer.json"),
    ],
)
def test_a_folder_the_engine_cannot_open_is_planned(sizes: dict[str, int], blocked_by: str) -> None:
    found = proposed(sentence(), sizes)
    assert found.spec.status == "planned" and blocked_by in found.spec.blocked_by


QUERY = "encoder.layer.0.attention.self.query"
SCALED = Tensor("F32", (384, 1))


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, {f"{QUERY}.weight": Tensor("F32", (8, 8))}, "_config"),
        ({"quantization": {"bits": 4}}, {f"{QUERY}.weight": Tensor("F32", (8, 8))}, "config.json: quantization)"),
        ({}, {f"{QUERY}.weight": Tensor("F8_E4M3", (384, 384)), f"{QUERY}.weight_scale": SCALED}, "of F8_E4M3"),
        ({}, {f"{QUERY}.weight": Tensor("I8", (384, 384)), f"{QUERY}.SCB": SCALED}, f"{QUERY}.weight of I8"),
        ({}, {f"{QUERY}.qweight": Tensor("I32", (48, 384)), f"{QUERY}.scales": SCALED}, f"{QUERY}.qweight of I32"),
    ],
)
def test_quantised_weights_are_waited_for_and_not_counted(
    config: dict[str, Any], tensors: dict[str, Tensor], said: str
) -> None:
    found = proposed(sentence(**{"config.json": BERT | config}), tensors=tensors).spec
    assert (found.status, found.parameters) == ("planned", 0)
    assert found.blocked_by.startswith("quantised weights (") and said in found.blocked_by


def test_a_projection_without_activation_is_a_layer_behind_the_pooling() -> None:
    layer = {"in_features": 384, "out_features": 512, "activation_function": "torch.nn.modules.linear.Identity"}
    files = sentence("Pooling", "Dense", "Normalize", **{"2_Dense/config.json": layer})
    found = proposed(files, WEIGHTS | {"2_Dense/model.safetensors": 1000})
    assert found.spec.tasks.dense == Dense(dim=512, projection="2_Dense.linear")
    assert found.spec.files == ("2_Dense/model.safetensors",) and found.spec.status == "ready"
    assert found.spec.bytes == WEIGHTS["model.safetensors"] + 1000
    without = proposed(files)
    assert "the weights of 2_Dense" in without.spec.blocked_by


PHI = BERT | {"model_type": "phi3", "architectures": ["Phi3Model"], "max_position_embeddings": 131072}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("config", "transformer", "tokenizer", "expected"),
    [
        (BERT, {"max_seq_length": 128}, TOKENIZER, 128),
        (BERT, {"max_seq_length": None}, TOKENIZER, 512),
        (BERT, {}, {"model_max_length": 1000000000000000019884624838656}, 512),
        (ROBERTA, {"max_seq_length": 514}, TOKENIZER, 512),
        (ROBERTA, {}, {"model_max_length": 10**40}, 512),
        (MODERNBERT, {}, {"model_max_length": 8192}, 8192),
        (PHI | {"rope_parameters": LONGROPE}, {}, {"model_max_length": 8192}, 4096),
        (PHI | {"rope_parameters": {"full_attention": LONGROPE}}, {"max_seq_length": 5000}, TOKENIZER, 4096),
        (PHI | {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 2048}, {}, {}, 2048),
        (PHI | {"rope_parameters": LONGROPE}, {"max_seq_length": 256}, TOKENIZER, 256),
    ],
)
def test_texts_may_be_as_long_as_published_and_as_there_are_positions(
    config: dict[str, Any], transformer: dict[str, Any], tokenizer: dict[str, Any], expected: int
) -> None:
    files = {"config.json": config, "sentence_bert_config.json": transformer, "tokenizer_config.json": tokenizer}
    assert proposed(sentence(**files)).spec.max_sequence_length == expected


def test_a_length_that_no_file_says_is_a_doubt() -> None:
    config = {name: value for name, value in BERT.items() if name != "max_position_embeddings"}
    found = proposed({"config.json": config, "tokenizer_config.json": {}, "README.md": "---\nlicense: mit\n---\n"})
    assert "max_sequence_length" in doubted(found)


@pytest.mark.parametrize(
    ("said", "query", "document"),
    [
        ({"prompts": {"query": "q: ", "passage": "p: "}}, "q: ", "p: "),
        ({"prompts": {"query": "q: ", "document": ""}}, "q: ", ""),
        ({"prompts": {"s2p": "find: ", "s2s": "same: "}, "default_prompt_name": "s2s"}, "same: ", "same: "),
        ({"prompts": {"query": "q: ", "document": "", "other": "x"}, "default_prompt_name": "other"}, "q: ", ""),
        ({"prompts": {}}, "", ""),
    ],
)
def test_prompts_are_those_of_sentence_transformers(said: dict[str, Any], query: str, document: str) -> None:
    dense = proposed(sentence(**{"config_sentence_transformers.json": said})).spec.tasks.dense
    assert dense is not None and (dense.query_prompt, dense.document_prompt) == (query, document)


def test_a_prompt_with_an_instruction_becomes_a_template_that_takes_others() -> None:
    said = {"prompts": {"query": "Instruct: Given a search, find passages\nQuery:", "document": ""}}
    found = proposed(sentence(**{"config_sentence_transformers.json": said})).spec.tasks.dense
    template = "Instruct: {instruction}\nQuery:{text}"
    assert found == Dense(dim=384, query_template=template, instruction="Given a search, find passages")


def test_a_prompt_that_is_there_by_default_is_a_doubt() -> None:
    said = {"prompts": {"s2s": "same: "}, "default_prompt_name": "s2s"}
    assert doubted(proposed(sentence(**{"config_sentence_transformers.json": said}))) == ["tasks.dense.query_prompt"]


def test_a_card_that_mentions_prompts_which_no_settings_name_is_a_doubt() -> None:
    card = CARD.format(tags="x") + 'Each input text should start with "query: " or "passage: ".\n'
    assert doubted(proposed(sentence(**{"README.md": card}))) == ["tasks.dense.query_prompt"]


def test_prompts_of_other_names_alone_are_a_doubt() -> None:
    said = {"prompts": {"s2p_query": "find: "}}
    assert doubted(proposed(sentence(**{"config_sentence_transformers.json": said}))) == ["tasks.dense.query_prompt"]


def test_shorter_lengths_come_from_the_settings_or_from_the_card() -> None:
    files = sentence(**{"config.json": BERT | {"matryoshka_dimensions": [384, 256, 64]}})
    assert proposed(files).spec.tasks.dense == Dense(dim=384, dims=(64, 256))
    card = "---\nlicense: mit\ntags: [MatryoshkaLoss]\nmodel-index: [{results: [{dataset: {name: dim 128}}]}]\n---\n"
    assert proposed(sentence(**{"README.md": card})).spec.tasks.dense == Dense(dim=384, dims=(128,))
    tagged = proposed(sentence(**{"README.md": CARD.format(tags="matryoshka")}))
    assert doubted(tagged) == ["tasks.dense.dims"]


def test_a_model_that_cuts_its_vectors_by_default_does_so_here() -> None:
    files = sentence(**{"config_sentence_transformers.json": {"prompts": {}, "truncate_dim": 128}})
    found = proposed(files).spec
    assert found.tasks.dense == Dense(dim=384, dims=(128,)) and found.chosen.options == {"dimensions": 128}


def test_the_family_is_auto_where_only_transformers_code_computes_it() -> None:
    convbert = proposed(sentence(**{"config.json": BERT | {"model_type": "convbert"}}))
    scaled = proposed(
        sentence(**{"config.json": BERT | {"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4}}})
    )
    assert convbert.spec.family == scaled.spec.family == "auto"
    assert "yarn" in scaled.notes["family"] and scaled.spec.status == "ready"
    code = {"auto_map": {"AutoModel": "m.EuroBertModel"}}
    own = proposed(sentence(**{"config.json": BERT | {"model_type": "eurobert", **code}}))
    assert own.spec.family == "auto" and doubted(own) == ["family"]


def test_jina_bert_calls_itself_bert() -> None:
    config = BERT | {"architectures": ["JinaBertForMaskedLM"], "position_embedding_type": "alibi"}
    config |= {"max_position_embeddings": 8192, "feed_forward_type": "geglu"}
    code = {"auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}}
    files = sentence(**{"config.json": config | code, "sentence_bert_config.json": {"max_seq_length": 8192}})
    found = proposed(files).spec
    assert (found.family, found.status, found.max_sequence_length) == ("jina_bert", "ready", 8192)
    tensors = {"encoder.layer.0.attention.self.layer_norm_q.weight": Tensor("F16", (768,))}
    other = proposed(files, tensors=tensors).spec
    assert (other.family, other.status) == ("jina_bert_qk", "ready")


def test_a_decoder_that_attends_to_both_sides_is_ready_where_it_brings_no_code() -> None:
    config = BERT | {"model_type": "qwen2", "is_causal": False}
    plain = proposed(sentence(**{"config.json": config}))
    assert (plain.spec.family, plain.spec.status, plain.doubts) == ("qwen2", "ready", ())
    with_code = proposed(sentence(**{"config.json": config | {"auto_map": {"AutoModel": "m.Qwen2Model"}}}))
    assert "own code of BertModel" in with_code.spec.blocked_by


def test_a_family_published_with_code_that_the_engine_has_is_ready() -> None:
    config = {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": 384, "n_positions": 2048}
    files = sentence(**{"config.json": config | {"auto_map": {"AutoModel": "m.NomicBertModel"}, "vocab_size": 30528}})
    found = proposed(files | {"sentence_bert_config.json": {"max_seq_length": 8192}}).spec
    assert (found.family, found.status, found.max_sequence_length) == ("nomic_bert", "ready", 2048)


def test_weights_may_stand_in_several_files_or_in_torchs_own_format() -> None:
    parts = {f"model-0000{part}-of-00002.safetensors": 10**9 for part in (1, 2)}
    index = {"model.safetensors.index.json": {"weight_map": dict(zip("ab", parts, strict=True))}}
    rest = {"tokenizer.json": 1}
    found = proposed(sentence(**index), rest | parts, tensors={"a": Tensor("BF16", (10, 10))}).spec
    assert (found.status, found.bytes, found.parameters) == ("ready", 2 * 10**9, 100)
    missing = proposed(sentence(**index), rest | {next(iter(parts)): 1}).spec
    assert "all files that model.safetensors.index.json names" in missing.blocked_by
    older = proposed(sentence(), rest | {"pytorch_model.bin": 7}).spec
    assert (older.status, older.bytes, older.parameters) == ("ready", 7, 0)


@pytest.mark.parametrize(
    ("card", "licence", "doubts"),
    [
        ("---\nlicense: [mit, apache-2.0]\n---\n", "mit OR apache-2.0", []),
        ("---\nlicense: other\nlicense_name: gemma\n---\n", "gemma", []),
        ("---\r\nlicense: mit\r\n---\r\nwindows", "mit", []),
        ("---\nlicense: {a: b\n---\n", "unknown", ["licence"]),
        ("no metadata", "unknown", ["licence"]),
    ],
)
def test_the_licence_is_the_cards(card: str, licence: str, doubts: list[str]) -> None:
    found = proposed(sentence(**{"README.md": card}))
    assert found.spec.licence == licence and doubted(found) == doubts


def test_a_folder_that_is_no_model_says_what_it_is() -> None:
    with pytest.raises(ConfigurationError, match=r"LoRA adapter of acme/base"):
        proposed({"adapter_config.json": {"base_model_name_or_path": "acme/base"}})
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        proposed({})
