"""A pass as one call of compiled code equals torch's steps: each variant that this CPU runs, each kind of layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sie_bundle.engine import cpu_attention, layer
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.embedding import Embedding
from sie_bundle.engine.fused import ACTIVATIONS, PANEL, Fused, panels
from sie_bundle.engine.layer import Attention, FeedForward, Layer, Norm
from sie_bundle.engine.linear import Product, plain
from sie_bundle.engine.packing import Packed, pack
from sie_bundle.engine.positions import Rotary
from sie_bundle.engine.row import Row, row
from sie_bundle.engine.shapes import checked
from sie_sdk.errors import ModelLoadFailedError
from tests.bundle import variants

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def random(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape) * scale


def product(outward: int, inward: int, activation: str = "none", bias: bool = True) -> Product:
    made = plain(random(outward, inward, scale=inward**-0.5), random(outward, scale=0.1) if bias else None)
    return made._replace(activation=activation)


def norm(size: int, rms: bool = False) -> Norm:
    return Norm(1 + random(size, scale=0.1), None if rms else random(size, scale=0.1), 1e-5, rms)


def a_layer(
    hidden: int = 64,
    heads: int = 2,
    key_heads: int = 2,
    size: int = 32,
    inner: int = 96,
    activation: str = "gelu",
    gated: bool = False,
    pre_norm: bool = False,
    between: bool = False,
    q_norm: int = 0,
    rope: int = -1,
    rms: bool = False,
    bias: bool = True,
) -> Layer:
    return Layer(
        attention=Attention(
            heads=heads,
            key_heads=key_heads,
            qkv=product((heads + 2 * key_heads) * size, hidden, bias=bias),
            q_norm=norm(q_norm, rms) if q_norm else None,
            k_norm=norm(size if q_norm == size else key_heads * size, rms) if q_norm else None,
            output=product(hidden, heads * size, bias=bias),
            rope=rope,
            mask=0,
        ),
        attention_norm=norm(hidden, rms),
        between_norm=norm(hidden, rms) if between else None,
        feed_forward=FeedForward(
            product(inner, hidden, activation, bias),
            product(inner, hidden, bias=bias) if gated else None,
            product(hidden, inner, bias=bias),
        ),
        output_norm=norm(hidden, rms),
        pre_norm=pre_norm,
    )


def batch(lengths: Sequence[int], seen: int | None = None) -> Packed:
    """Texts of which each token is another word."""
    starts = np.cumsum([0, *lengths[:-1]])
    texts = zip(starts, lengths, strict=True)
    return pack([Row(start + np.arange(each), each, min(seen or each, each)) for start, each in texts], CPU)


def words_only(words: Tensor) -> Embedding:
    return Embedding(words, None, None, 0, None, None, torch.float32)


def tables_of(places: int, size: int) -> list[Rotary]:
    angles = torch.arange(places)[:, None, None] * 10_000 ** -(torch.arange(0, size, 2) / size)
    sines = torch.cat((-angles.sin(), angles.sin()), -1)
    return [Rotary(torch.cat((angles.cos(), angles.cos()), -1), sines)]


def stepwise(x: Tensor, layers: Sequence[Layer], packed: Packed, rotaries: list[Rotary], mask: AttentionMask) -> Tensor:
    """torch's steps, one after the other, in float32."""
    for each in layers:
        q, k, v = layer.queried(x, each, rotaries)
        x = layer.fed(x, cpu_attention.attend(q, k, v, packed, mask), each)
    return x


def compare(
    of: str,
    layers: Sequence[Layer],
    packed: Packed,
    mask: AttentionMask | None = None,
    threads: int = 1,
    looser: float = 1.0,
) -> None:
    """Compute both ways and compare."""
    embedding = words_only(random(len(packed.ids), layers[0].output_norm.weight.numel()))
    size = layers[0].attention.output.weight.shape[1] // layers[0].attention.heads  # type: ignore[union-attr]
    tables = tables_of(packed.longest, size) if layers[0].attention.rope >= 0 else []
    rotaries = [Rotary(table.cosines[packed.positions], table.sines[packed.positions]) for table in tables]
    expected = stepwise(embedding(packed), layers, packed, rotaries, mask or AttentionMask())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = made(of, embedding, layers)(packed, tables, [mask or AttentionMask()])
    finally:
        torch.set_num_threads(before)
    assert got.shape == expected.shape and got.isfinite().all()
    off, allowed = got - expected, TOLERANCE[variants.dtype(of)] * max(1.0, float(expected.abs().max()))
    assert off.abs().max() < looser * allowed
    assert off.square().mean().sqrt() < allowed / 5  # one number may be off by luck, all of them not


def made(
    of: str,
    embedding: Embedding,
    layers: Sequence[Layer],
    weights: torch.dtype | None = None,
    final_norm: Norm | None = None,
) -> Fused:
    """By a variant, with its own kind of weights if there is no other."""
    dtype = variants.dtype(of)
    return Fused(variants.library(of), embedding, [_in(weights or dtype, each) for each in layers], final_norm, dtype)


def _in(dtype: torch.dtype, of: Layer) -> Layer:
    def cast(one: Product) -> Product:
        assert one.weight is not None
        return one._replace(weight=one.weight.to(dtype))

    attention, forward = of.attention, of.feed_forward
    return of._replace(
        attention=attention._replace(qkv=cast(attention.qkv), output=cast(attention.output)),
        feed_forward=FeedForward(cast(forward.up), cast(forward.gate) if forward.gate else None, cast(forward.down)),
    )


KINDS: dict[str, dict[str, object]] = {
    "bert": {},
    "no biases": {"bias": False},
    "sizes that are no multiple of 32": {"hidden": 40, "heads": 5, "key_heads": 5, "size": 8, "inner": 50},
    "heads of an odd size": {"hidden": 36, "heads": 3, "key_heads": 3, "size": 12, "inner": 36},
    "heads of 64": {"hidden": 128, "heads": 2, "key_heads": 2, "size": 64, "inner": 160},
    "heads of 40": {"hidden": 80, "heads": 2, "key_heads": 2, "size": 40},
    "heads of 128": {"hidden": 128, "heads": 2, "key_heads": 1, "size": 128},
    "fewer key heads": {"heads": 4, "key_heads": 2, "size": 32, "pre_norm": True},
    "llama": {"rms": True, "bias": False, "pre_norm": True, "gated": True, "activation": "silu", "rope": 0},
    "norms of each head": {"q_norm": 32, "rms": True, "pre_norm": True, "rope": 0, "heads": 4, "key_heads": 2},
    "norms of all heads": {"q_norm": 64, "between": True, "gated": True},
    "rotated": {"rope": 0, "gated": True, "activation": "gelu"},
    "inner states in pieces": {"inner": 900},
    "gated inner states in pieces": {"inner": 900, "gated": True, "bias": False, "pre_norm": True},
}


@pytest.mark.parametrize("of", variants.EVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_layer_equals_torchs_steps(kind: str, of: str) -> None:
    torch.manual_seed(1)
    compare(of, [a_layer(**KINDS[kind]), a_layer(**KINDS[kind])], batch([3, 40, 1, 17, 40, 70]))  # type: ignore[arg-type]


@pytest.mark.parametrize("of", variants.EVERY)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_activation_equals_torchs_far_from_nothing_too(activation: str, of: str) -> None:
    torch.manual_seed(2)
    compare(of, [a_layer(activation=activation, pre_norm=True)], batch([9, 30]))
    wide = a_layer(activation=activation)
    forward = wide.feed_forward
    assert forward.up.weight is not None
    wide = wide._replace(feed_forward=forward._replace(up=forward.up._replace(weight=forward.up.weight * 20)))
    compare(of, [wide], batch([9, 30]))


BIAS = torch.linspace(-3, 3, 2 * 704 * 704).sin().view(2, 704, 704)
MASKS = {
    "causal": AttentionMask(causal=True),
    "a window": AttentionMask(window=7),
    "a wide window": AttentionMask(window=50),
    "a causal window": AttentionMask(causal=True, window=20),
    "a window as wide as a number of 32 bits": AttentionMask(window=2**31 - 1),
    "a causal window that is wider": AttentionMask(causal=True, window=2**32 + 3),
    "a bias": AttentionMask(bias=BIAS),
    "scores beyond what a power of two holds": AttentionMask(bias=BIAS + 150),
    "scores below what a power of two holds": AttentionMask(bias=BIAS - 150),
    "both for some queries": AttentionMask(bias=BIAS + 150 * (torch.arange(704) % 3 - 1)[:, None]),
    "both for a query": AttentionMask(bias=BIAS + 150 * (torch.arange(704) % 3 - 1)),
    "slopes": AttentionMask(slopes=torch.tensor([-0.5, -0.05])),
}


@pytest.mark.parametrize("of", variants.EVERY)
@pytest.mark.parametrize("mask", MASKS)
def test_each_mask_equals_torchs_attention(mask: str, of: str) -> None:
    torch.manual_seed(3)
    compare(of, [a_layer()], batch([1, 8, 33, 64, 65, 130, 700]), MASKS[mask])


@pytest.mark.parametrize("of", variants.EVERY)
def test_tokens_that_are_not_attended_to_weigh_nothing(of: str) -> None:
    torch.manual_seed(4)
    compare(of, [a_layer()], batch([32, 32, 8, 50], seen=9))


@pytest.mark.parametrize("of", variants.EVERY)
def test_long_texts_and_large_scores_equal_torchs_steps(of: str) -> None:
    torch.manual_seed(5)
    sharp = a_layer()
    assert sharp.attention.qkv.weight is not None
    qkv = sharp.attention.qkv._replace(weight=sharp.attention.qkv.weight * 3)
    # A bfloat16 is off by up to 2^-9: of scores of 60 that makes weights that differ by a tenth.
    compare(of, [sharp._replace(attention=sharp.attention._replace(qkv=qkv))], batch([1100, 2]), looser=2)


@pytest.mark.parametrize("of", variants.EVERY)
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=9), threads=st.integers(1, 2), seed=st.integers(0, 99)
)
def test_any_lengths_on_any_threads_equal_torchs_steps(of: str, lengths: list[int], threads: int, seed: int) -> None:
    torch.manual_seed(seed)
    compare(of, [a_layer(), a_layer()], batch(lengths), threads=threads)


@pytest.mark.parametrize("of", variants.EVERY)
def test_a_text_is_computed_to_the_last_bit_as_alone_whatever_is_beside_it(of: str) -> None:
    torch.manual_seed(6)
    fused = made(of, words_only(random(138, 64)), [a_layer(inner=900)])
    together = batch([5, 33, 100])
    states, start = fused(together, [], [AttentionMask()]), 0
    for text in together.rows:
        alone = fused(pack([text], CPU), [], [AttentionMask()])
        assert torch.equal(states[start : start + len(text)], alone)
        start += len(text)


@pytest.mark.parametrize("of", variants.EVERY)
def test_numbers_that_are_none_stay_within_their_text(of: str) -> None:
    torch.manual_seed(7)
    words = random(70, 64)
    words[20] = torch.nan
    finite = made(of, words_only(words), [a_layer()])(batch([10, 30, 30]), [], [AttentionMask()]).isfinite().all(dim=1)
    assert finite[:10].all() and not finite[20] and finite[40:].all()


@pytest.mark.parametrize("of", variants.EVERY)
def test_weights_of_float16_are_computed_with_in_float32(of: str) -> None:
    if variants.dtype(of) is not torch.float32:
        pytest.skip("bfloat16 is multiplied as it is")
    torch.manual_seed(8)
    halved = _in(torch.float16, a_layer(inner=900))
    embedding = words_only(random(45, 64))
    for packed in (batch([5, 40]), batch([13])):  # made float32 once, and on the way of each row
        got = made(of, embedding, [halved], torch.float16)(packed, [], [AttentionMask()])
        exact = stepwise(embedding(packed), [_in(torch.float32, halved)], packed, [], AttentionMask())
        assert (got - exact).abs().max() < 2e-5


@pytest.mark.parametrize("of", variants.EVERY)
def test_what_onednn_computes_around_a_pass_stays_right(of: str) -> None:
    """Both set up a thread's tiles; neither may leave the other with its own."""
    torch.manual_seed(9)
    multiplied = torch.bfloat16 if torch.cpu._is_avx512_supported() else torch.float32  # oneDNN wants it for bfloat16
    weight, rows = random(96, 64).to(multiplied), random(40, 64).to(multiplied)
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    for _ in range(3):
        got = torch.ops.mkldnn._linear_pointwise(rows, reordered, None, "none", [], "")
        assert torch.allclose(got.float(), rows.float() @ weight.float().T, rtol=1e-2, atol=0.1)
        compare(of, [a_layer()], batch([40]))


@pytest.mark.parametrize("of", variants.EVERY)
def test_numbers_below_the_smallest_normal_one_are_none_within_a_pass_only(of: str) -> None:
    torch.manual_seed(10)
    small = np.array([1e-39], dtype=np.float32)
    compare(of, [a_layer()], batch([40]))
    assert (small * np.float32(0.5))[0] > 0


def test_a_panel_holds_thirty_two_columns_in_whole_units() -> None:
    weight = torch.arange(40 * 33, dtype=torch.float32).view(40, 33).bfloat16()
    laid = panels(weight, 2).view(torch.bfloat16).view(2, 32, PANEL, 2)
    assert laid[0, 3, 5, 1] == weight[5, 7] and laid[1, 2, 1, 0] == weight[33, 4]
    assert not laid[1, :, 8:].any() and not laid[:, 17:].any()
    assert panels(weight.float(), 1)[1, 32, 7] == weight[39, 32]


@pytest.mark.parametrize(
    "wrong",
    [
        words_only(random(9, 65)),
        words_only(random(9, 64))._replace(positions=random(9, 65)),
        words_only(random(9, 64))._replace(types=random(2, 63)),
        words_only(random(9, 64))._replace(norm=norm(65)),
    ],
)
def test_tables_of_another_size_than_the_layers_states_are_refused(wrong: Embedding) -> None:
    with pytest.raises(ModelLoadFailedError, match="before the first layer"):
        list(checked(wrong, [a_layer()], None))


def test_a_final_norm_of_another_size_than_the_layers_states_is_refused() -> None:
    with pytest.raises(ModelLoadFailedError, match="behind the last layer"):
        list(checked(words_only(random(9, 64)), [a_layer()], norm(65)))


@pytest.mark.parametrize("of", variants.EVERY)
def test_what_a_batch_brings_is_as_large_as_the_weights_say_or_refused(of: str) -> None:
    embedding = Embedding(random(40, 64), random(50, 64), random(1, 64), 10, None, None, torch.float32)
    fused, packed, mask = made(of, embedding, [a_layer(rope=0)]), batch([40]), AttentionMask()
    fused(packed, tables_of(40, 32), [mask])
    with pytest.raises(ValueError, match="heads of 32"):
        fused(packed, tables_of(40, 16), [mask])
    with pytest.raises(ValueError, match="of 40 places"):
        fused(packed, tables_of(39, 32), [mask])
    for bias in (random(1, 64, 64), random(2, 39, 39)):
        with pytest.raises(ValueError, match="a bias of"):
            fused(packed, tables_of(40, 32), [AttentionMask(bias=bias)])
    for ids in ([3, 40], [-1, 3]):
        with pytest.raises(ValueError, match="for 40 words"):
            fused(pack([row(ids)], CPU), tables_of(40, 32), [mask])
    with pytest.raises(ValueError, match="41 tokens for 50 positions"):
        fused(pack([row([1] * 41)], CPU), tables_of(41, 32), [mask])
    with pytest.raises(ValueError, match="second text"):
        fused(pack([Row(np.array([1, 2]), 1, 2)], CPU), tables_of(2, 32), [mask])
