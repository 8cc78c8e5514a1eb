"""MUVERA: a multivector as one vector, so that an index for single vectors can search it by inner product.

Owns fixed dimensional encodings (FDEs) as in "MUVERA: Multi-Vector Retrieval via Fixed Dimensional Encodings",
2405.19504. The score they stand in for is ``maxsim``; the request's option is read by ``encode``. No torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from sie_config.model.runtime_options import (
    MUVERA_LARGEST,
    MUVERA_REPETITIONS,
    MUVERA_SIMHASH_BITS,
    muvera_drawn,
    muvera_numbers,
)
from sie_sdk.errors import InvalidInputError

Floats: TypeAlias = npt.NDArray[np.float32]
Indices: TypeAlias = npt.NDArray[np.intp]

WEIGHTS: Final = 1 << 20
"""At most this many weights of tokens in buckets (4 MiB), and as many numbers of tokens after their projection, exist
at a time, but always those of one repetition."""
ENCODINGS: Final = 1 << 20
"""At most this many numbers of encodings before the final projection (4 MiB) exist at a time, but always a text's."""

KEPT: Final = 1 << 24
"""So many bytes of random choices are kept in all, those used last: an option chooses them, up to 128 MiB a record."""


class Muvera(msgspec.Struct, frozen=True):
    """How multivectors become fixed dimensional encodings. Only encodings by the same record can be compared.

    Each repetition cuts the space by random hyperplanes into ``2**simhash_bits`` buckets. A query's encoding has the
    sum of its tokens in each bucket, a document's the average of its tokens in each; a bucket without tokens gets the
    document's token that lies the fewest hyperplanes away. The inner product of the two ranks documents much as MaxSim
    does; divided by ``repetitions`` it stays below the MaxSim score, and comes nearer with more bits.

    Args:
        dim: the dimensions of a token's vector.
        repetitions: independent partitions, one after the other in the encoding.
        simhash_bits: hyperplanes of a partition.
        projection: dimensions to which random signs reduce each token within a bucket; None keeps ``dim``.
        final_dims: dimensions of the encoding after a count sketch; None, or as many as there are, leaves it as it is.
        seed: of all random choices. NumPy's frozen generator makes them, so stored encodings outlive an upgrade.

    Raises:
        InvalidInputError: a field is out of its range; names it as ``params.options.muvera.{field}``.
    """

    dim: int
    repetitions: int = MUVERA_REPETITIONS
    simhash_bits: int = MUVERA_SIMHASH_BITS
    projection: int | None = None
    final_dims: int | None = 10240
    seed: int = 42

    def __post_init__(self) -> None:
        ranges = {"dim": (1, 1 << 16), "repetitions": (1, 1024), "simhash_bits": (0, 12), "seed": (0, (1 << 32) - 1)}
        ranges |= {"projection": (1, self.dim)} if self.projection is not None else {}
        ranges |= {"final_dims": (1, MUVERA_LARGEST)} if self.final_dims is not None else {}
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise InvalidInputError(
                    f"{name}={value!r} is not a whole number from {low} to {high}.",
                    field=f"params.options.muvera.{name}",
                    limit=high,
                )
        if self._unreduced > MUVERA_LARGEST:
            raise InvalidInputError(
                f"An encoding would have {self._unreduced} numbers before its final projection.",
                field="params.options.muvera",
                limit=MUVERA_LARGEST,
                hint="Use fewer repetitions or bits, or a projection.",
            )
        if (drawn := muvera_drawn(self.dim, self.repetitions, self.simhash_bits, self.projection)) > MUVERA_LARGEST:
            raise InvalidInputError(
                f"{drawn} random numbers would be drawn for it.",
                field="params.options.muvera",
                limit=MUVERA_LARGEST,
                hint="Use fewer repetitions, or a smaller projection.",
            )

    @property
    def dims(self) -> int:
        """The dimensions of an encoding."""
        return min(self._unreduced, self.final_dims or self._unreduced)

    @property
    def _unreduced(self) -> int:
        return muvera_numbers(self.dim, self.repetitions, self.simhash_bits, self.projection)

    def encode_queries(self, queries: Sequence[npt.NDArray[Any]]) -> Floats:
        """The encodings, float32 ``[n, dims]``, of queries, float arrays ``[tokens, dim]``.

        Raises:
            InvalidInputError: a text has no tokens or vectors of another size; names it.
        """
        return _encode(self, queries, _sums)

    def encode_documents(self, documents: Sequence[npt.NDArray[Any]]) -> Floats:
        """The encodings of documents; as `encode_queries`."""
        return _encode(self, documents, _averages)


SIZES: Final = tuple(name for name in Muvera.__struct_fields__ if name != "dim")
"""What a request may say of one; ``dim`` is the model's."""


def of_option(given: object, dim: int) -> Muvera:
    """The encoding of vectors of ``dim`` that a request's option describes: true, or a map of `SIZES`.

    Raises:
        InvalidInputError: it is neither, or a size that there is not or that is out of its range.
    """
    field, sizes = "params.options.muvera", ", ".join(SIZES)
    if given is True:
        return Muvera(dim)
    if not isinstance(given, dict):
        told = f"true, false or a map of {sizes}"
        raise InvalidInputError(f"muvera={given!r} is not {told}.", field=field, limit=sizes, hint=f"Give {told}.")
    for name in given:
        if name not in SIZES:
            told = f"There is no {str(name)[:80]!r} in muvera."
            raise InvalidInputError(told, field=field, limit=sizes, hint=f"It may have {sizes}.")
    return Muvera(dim, **given)


class Draws(NamedTuple):
    """The random choices of a record.

    ``hyperplanes``: normals, float32 ``[dim, repetitions * bits]``. ``projections``: float32 ``[repetitions, dim,
    projection]`` of ``+-1 / sqrt(projection)``. ``signs``: +-1, float32 ``[unreduced]``, and ``shifts``: ints, one for
    each block of the count sketch. None, and no shifts, for what the record does without.
    """

    hyperplanes: Floats
    projections: Floats | None
    signs: Floats | None
    shifts: list[int]

    @property
    def bytes(self) -> int:
        """What it takes; a whole number of Python's takes 40."""
        arrays = (self.hyperplanes, self.projections, self.signs)
        return sum(array.nbytes for array in arrays if array is not None) + 40 * len(self.shifts)


_kept: dict[Muvera, Draws] = {}
"""The random choices of the records used last, the last one at the end."""
_keeping = threading.Lock()


def draws(config: Muvera) -> Draws:
    """The random choices of a record, which are drawn anew where they are not among those kept."""
    with _keeping:
        if (drawn := _kept.pop(config, None)) is not None:
            _kept[config] = drawn
            return drawn
    drawn = _drawn(config)
    if drawn.bytes <= KEPT:
        with _keeping:
            _kept[config] = drawn
            while sum(each.bytes for each in _kept.values()) > KEPT:
                del _kept[next(iter(_kept))]
    return drawn


def _drawn(config: Muvera) -> Draws:
    """The same for the same record in every process and with every NumPy.

    Each kind has a stream of its own, so that a field changes no other's choices: the encoding without final
    projection of few repetitions is the beginning of the one of more.
    """
    bits, reps, dim = config.simhash_bits, config.repetitions, config.dim
    normals = np.random.RandomState([config.seed, 0]).standard_normal((reps, dim, bits))
    hyperplanes = normals.transpose(1, 0, 2).reshape(dim, reps * bits).astype(np.float32)
    projections = signs = None
    shifts: list[int] = []
    if config.projection is not None:
        ones = _signs(np.random.RandomState([config.seed, 1]), reps * dim * config.projection)
        projections = ones.reshape(reps, dim, config.projection) / np.float32(np.sqrt(config.projection))
    if config.dims < config._unreduced:
        signs = _signs(np.random.RandomState([config.seed, 2]), config._unreduced)
        blocks = -(-config._unreduced // block(config))
        shifts = np.random.RandomState([config.seed, 3]).randint(config.dims, size=blocks, dtype=np.int64).tolist()
    return Draws(hyperplanes, projections, signs, shifts)


def block(config: Muvera) -> int:
    """How many numbers the final projection moves together: a repetition's, but no more than it has dimensions."""
    return min(config._unreduced // config.repetitions, config.dims)


def _signs(random: np.random.RandomState, count: int) -> Floats:
    return random.randint(2, size=count, dtype=np.int8).astype(np.float32) * 2 - 1


Weigh: TypeAlias = Callable[[Indices, int], Floats]
"""How much each token counts in each bucket: codes ``[t, r]`` and bits give float32 ``[r, 2**bits, t]``."""


def _encode(config: Muvera, texts: Sequence[npt.NDArray[Any]], weigh: Weigh) -> Floats:
    for number, text in enumerate(texts):
        if text.ndim != 2 or not len(text) or text.shape[1] != config.dim:
            raise InvalidInputError(
                f"The multivector of text {number} has the shape {list(text.shape)}.",
                field=f"items[{number}]",
                limit=config.dim,
                hint=f"Give an array [tokens, {config.dim}] with at least one token.",
            )
    drawn = draws(config)
    encodings = np.empty((len(texts), config.dims), np.float32)
    together = max(1, ENCODINGS // config._unreduced)
    for start in range(0, len(texts), together):
        group = texts[start : start + together]
        unreduced = np.empty((len(group), config._unreduced), np.float32)
        for text, row in zip(group, unreduced, strict=True):
            _fill(config, drawn, np.asarray(text, np.float32), weigh, row)
        encodings[start : start + together] = _sketched(config, drawn, unreduced)
    return encodings


def _fill(config: Muvera, drawn: Draws, vectors: Floats, weigh: Weigh, encoding: Floats) -> None:
    """Write one text's encoding before the final projection.

    A bucket is a weighted sum of tokens, so the buckets of a repetition are one product of matrices. Text by text, so
    that an encoding does not depend on the texts beside it: a product of other shapes is rounded otherwise, which can
    put a token on a hyperplane's other side.
    """
    bits, reps = config.simhash_bits, config.repetitions
    above = (vectors @ drawn.hyperplanes > 0).reshape(len(vectors), reps, bits)
    codes = (above.astype(np.float32) @ (2.0 ** np.arange(bits)[::-1]).astype(np.float32)).astype(np.intp)
    blocks = encoding.reshape(reps, 1 << bits, -1)
    step = max(1, WEIGHTS // (len(vectors) * max(1 << bits, config.projection or 0)))
    for low in range(0, reps, step):
        high = min(low + step, reps)
        inner = vectors if drawn.projections is None else vectors @ drawn.projections[low:high]
        np.matmul(weigh(codes[:, low:high], bits), inner, out=blocks[low:high])


def _sums(codes: Indices, bits: int) -> Floats:
    """Every token counts once, in its bucket."""
    tokens, reps = codes.shape
    weights = np.zeros((reps, 1 << bits, tokens), np.float32)
    weights[np.arange(reps), _places(bits)[codes], np.arange(tokens)[:, None]] = 1
    return weights


def _averages(codes: Indices, bits: int) -> Floats:
    """The tokens of a bucket share it; a bucket without any has the nearest token, the first of those equally near.

    Nearest by Hamming distance: one pass for each bit takes the better of a bucket's own token and that of the bucket
    across the hyperplane, one step further away. Distance and token are one number, ``distance * tokens + token``.
    """
    tokens, reps = codes.shape
    buckets = 1 << bits
    flat = (codes + np.arange(reps) * buckets).ravel()
    counts = np.bincount(flat, minlength=reps * buckets)
    nearest = np.full(reps * buckets, (bits + 1) * tokens)
    np.minimum.at(nearest, flat, np.repeat(np.arange(tokens), reps))
    for bit in range(bits):
        pairs = nearest.reshape(-1, 2, 1 << bit)
        nearest = np.minimum(pairs, pairs[:, ::-1] + tokens).ravel()
    weights = np.zeros((reps, buckets, tokens), np.float32)
    places = _places(bits)
    weights[np.arange(reps), places[codes], np.arange(tokens)[:, None]] = 1 / counts[flat].reshape(tokens, reps)
    rep, code = np.nonzero(counts.reshape(reps, buckets) == 0)
    weights[rep, places[code], nearest.reshape(reps, buckets)[rep, code] % tokens] = 1
    return weights


@lru_cache(maxsize=16)
def _places(bits: int) -> Indices:
    """The place in the encoding of each bucket, by its bits: the bits are the Gray code of the place.

    So that neighbours in the encoding differ in one bit, as in the published implementation.
    """
    places = np.arange(1 << bits)
    shift = 1
    while shift < bits:
        places ^= places >> shift
        shift *= 2
    return places


def _sketched(config: Muvera, drawn: Draws, unreduced: Floats) -> Floats:
    """The final projection, a count sketch: each number, with a random sign, is added to a random place.

    The places of a block are neighbours from a random shift on, so that a block is added at once. Two numbers meet with
    a probability of at most ``1 / dims``, as with places drawn for each, and that alone decides the variance.
    """
    if drawn.signs is None:
        return unreduced
    size, dims = block(config), config.dims
    unreduced *= drawn.signs
    # Twice as wide as the result, so that a block that runs over its end needs no cut.
    sums = np.zeros((len(unreduced), 2 * dims), np.float32)
    for number, shift in enumerate(drawn.shifts):
        part = unreduced[:, number * size : (number + 1) * size]
        sums[:, shift : shift + part.shape[1]] += part
    return sums[:, :dims] + sums[:, dims:]
