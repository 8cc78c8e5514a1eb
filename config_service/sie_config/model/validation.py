"""What is wrong with a model spec as it was written, all of it at once; and what of a valid one is doubtful. Pure.

Owns the rules between fields and the warnings. Whether each field is what its type says is ``structure``'s. A rule that
needs a field with a fault says nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, get_args

import msgspec

from sie_config.model import runtime_options, structure, template
from sie_config.model.model_spec import ModelSpec
from sie_config.model.runtime_options import MUVERA_LARGEST, muvera_drawn, muvera_numbers
from sie_config.model.sources import HubSource, LocalSource
from sie_config.model.structure import Finding, Path, finding
from sie_config.model.tasks import Tasks
from sie_config.model_name import DEFAULT
from sie_sdk.types import SPARSE_DTYPES, OutputType, asks_for_muvera

MOST: Final = 100
"""So many faults are told; a document with more is no spec, and looking for all of them would take long."""
COMPUTED: Final = {"extract": frozenset(runtime_options.EXTRACT), "inputs": frozenset({"text"})}
"""What this build computes, of what a spec can say; everything else is planned."""

Faulty = tuple[Path, Finding]


def faults(document: Any) -> list[Finding]:
    """Everything that is wrong with the document of a spec; none: `model_spec.parse` takes it."""
    if not isinstance(document, dict):
        return [Finding("", "the document is not a mapping of fields", structure.brief(document), "a mapping")]
    found = list(islice(structure.faults(document, ModelSpec), MOST + 1))
    if len(found) > MOST:
        return [each for _, each in found[:MOST]] + [Finding("", f"more faults: these are the first {MOST}")]
    given = _Given(document, [path for path, _ in found])
    return [each for _, each in found] + [each for rule in _RULES for _, each in _told_by(rule, given)]


def warnings(spec: ModelSpec, families: Collection[str] = ()) -> list[Finding]:
    """What is doubtful about a valid spec, or cannot be checked here.

    ``families``: those that the engine runs; empty: not known here, so that nothing is said about the family.
    """
    return [each for rule in _DOUBTS for each in rule(spec)] + list(_unknown_family(spec, families))


class _FaultyError(Exception):
    """A part that a rule asked for has a fault already. Never leaves this module."""


class _Given:
    """A document's parts that are as their types say."""

    def __init__(self, document: Mapping[Any, Any], faulty: list[Path]) -> None:
        self._document = document
        self._faulty = faulty

    def __call__(self, *path: str | int) -> Any:
        """What stands at ``path``; where nothing does, a field's default, and None further inside."""
        if any(each[: len(path)] == path[: len(each)] for each in self._faulty):
            raise _FaultyError
        if len(path) == 1:
            return self._document.get(path[0], _DEFAULTS[path[0]])
        return self._at(path)

    def names(self, *path: str | int) -> list[str]:
        """The names of the fields or entries that a mapping has, whatever is wrong inside of them."""
        value = self._at(path)
        named = value.items() if isinstance(value, dict) else ()
        return [name for name, held in named if isinstance(name, str) and held is not None]

    def _at(self, path: Path) -> Any:
        value: Any = self._document
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return value


_DEFAULTS: Final[dict[str | int, Any]] = {field.name: field.default for field in msgspec.structs.fields(ModelSpec)}


def _told_by(rule: Callable[[_Given], Iterator[Faulty]], given: _Given) -> list[Faulty]:
    found: list[Faulty] = []
    try:
        for each in rule(given):
            found.append(each)  # noqa: PERF402 - what came before a faulty part counts
    except _FaultyError:
        pass
    return found


def _fault(path: Path, message: str, value: Any = None, allowed: str = "") -> Faulty:
    return path, finding(path, message, value, allowed)


def _id(given: _Given) -> Iterator[Faulty]:
    name = given("id")
    if name is None:
        return
    for bad in ("__", "..", "//"):
        if bad in name:
            yield _fault(("id",), f"contains {bad}, which paths and files of its name cannot", name, f"no {bad}")
    for end in ("/", "/status"):
        if name.lower().endswith(end):
            yield _fault(("id",), f"ends with {end}, which is another route's", name, f"no {end} at the end")
    if "." in name.split("/"):
        yield _fault(("id",), "has a part that is a dot, which clients leave out of a path", name, "no part of a dot")


def _status(given: _Given) -> Iterator[Faulty]:
    status, blocked_by = given("status"), given("blocked_by")
    if status == "planned" and not blocked_by.strip():
        yield _fault(("blocked_by",), "missing; a planned model says what it waits for", blocked_by, "a text")
    if status == "ready" and blocked_by:
        yield _fault(("blocked_by",), "a ready model waits for nothing", blocked_by, "empty, or status: planned")


def _length(given: _Given) -> Iterator[Faulty]:
    if given("status") == "ready" and given("max_sequence_length") == 0:
        wanted = "a whole number of at least 1"
        told = f"missing; a ready model has {wanted}"
        yield _fault(("max_sequence_length",), told, given("max_sequence_length"), wanted)


def _computed(given: _Given) -> Iterator[Faulty]:
    if given("status") != "ready":
        return
    if (kind := given("tasks", "extract", "kind")) is not None and kind not in COMPUTED["extract"]:
        known = ", ".join(sorted(COMPUTED["extract"]))
        told = f"{kind} is computed by nothing here yet: status: planned"
        yield _fault(("tasks", "extract", "kind"), told, kind, f"one of {known}, or status: planned")


def _inputs(given: _Given) -> Iterator[Faulty]:
    if given("status") == "ready" and (strange := [each for each in given("inputs") if each not in COMPUTED["inputs"]]):
        known = ", ".join(sorted(COMPUTED["inputs"]))
        told = f"{', '.join(strange)} is read by nothing here yet: status: planned"
        yield _fault(("inputs",), told, given("inputs"), f"{known}, or status: planned")


def _any_task(given: _Given) -> Iterator[Faulty]:
    if given("tasks") is not None and not given.names("tasks") and given("status") == "ready":
        known = ", ".join(Tasks.__struct_fields__)
        yield _fault(("tasks",), f"names no task; known: {known}", given("tasks"), known)


def _dims(given: _Given) -> Iterator[Faulty]:
    whole = given("tasks", "dense", "dim")
    for number, dims in enumerate(given("tasks", "dense", "dims") or ()):
        if dims >= whole:
            wanted = f"less than dim, {whole}"
            yield _fault(("tasks", "dense", "dims", number), f"{dims} is not {wanted}", dims, wanted)


def _prompt(given: _Given, of: str) -> Iterator[Faulty]:
    path = ("tasks", "dense", f"{of}_template")
    if written := given(*path):
        yield from _template(path, written)
        if given("tasks", "dense", f"{of}_prompt"):
            told = f"stands instead of {of}_prompt, which is there too"
            yield _fault(path, told, written, f"{of}_template or {of}_prompt")


def _template(path: Path, written: str) -> Iterator[Faulty]:
    if told := template.fault(written):
        yield _fault(path, told, written, "a text with {text}, and {instruction} if you like")


def _pairs(given: _Given) -> Iterator[Faulty]:
    path = ("tasks", "score", "template")
    if given("tasks", "score", "kind") != "yes_no" or (written := given(*path)) is None:
        return
    for told in sorted({template.fault(written, known) for known in _PAIRS} - {""}):
        yield _fault(path, told, written, "a text with {query} and {document}, and {instruction} if you like")


_PAIRS: Final = (("query", "document", "instruction"), ("document", "query", "instruction"))
"""Both are the same places; the first of each has to be there."""


def _hypothesis(given: _Given) -> Iterator[Faulty]:
    path = ("tasks", "extract", "hypothesis")
    if "{}" not in (written := given(*path) or "{}"):
        yield _fault(path, "has no place {} for the label", written, "a sentence with {}")


def _maxsim(given: _Given) -> Iterator[Faulty]:
    if given("tasks", "score", "kind") == "maxsim" and "multivector" not in given.names("tasks"):
        told = "maxsim compares vectors of the multivector task, which is not there"
        yield _fault(("tasks", "score", "kind"), told, "maxsim", "another kind, or tasks.multivector")


def _files(given: _Given) -> Iterator[Faulty]:
    for number, name in enumerate(given("files")):
        if not name or name.startswith("/") or ".." in name.split("/") or "\\" in name:
            wanted = "a path inside of the model's folder"
            yield _fault(("files", number), f"{name!r} is not {wanted}", name, wanted)


def _default_profile(given: _Given) -> Iterator[Faulty]:
    chosen, names = given("default_profile"), given.names("profiles")
    if chosen != DEFAULT and chosen not in names:
        close = difflib.get_close_matches(chosen, names, n=1)
        told = f"{chosen} is not among the profiles" + (f"; did you mean {close[0]}?" if close else "")
        yield _fault(("default_profile",), told, chosen, ", ".join([DEFAULT, *names]))
    if chosen != DEFAULT and DEFAULT in names:
        told = f"nothing chooses it, because default_profile is {chosen}"
        yield _fault(("profiles", DEFAULT), told, None, "another name, or default_profile: default")


def _profiles(given: _Given) -> Iterator[Faulty]:
    """What the engine would refuse of every request that has the profile."""
    for profile in given.names("profiles"):
        for rule in _OF_A_PROFILE:
            yield from _told_by(partial(rule, at=("profiles", profile, "options")), given)


def _outputs(given: _Given, at: Path) -> Iterator[Faulty]:
    if not (tasks := given.names("tasks")):
        return
    offered = [name for name in get_args(OutputType) if name in tasks]
    encoded = ["dense"] if "multivector" in offered and asks_for_muvera(given(*at, "muvera")) else []
    for number, output in enumerate(given(*at, "output_types") or ()):
        if output not in (*offered, *encoded):
            told = f"the model has no {output} output"
            yield _fault((*at, "output_types", number), told, output, ", ".join(offered))


def _dtype(given: _Given, at: Path) -> Iterator[Faulty]:
    offered = [name for name in get_args(OutputType) if name in given.names("tasks")]
    asked = given(*at, "output_types") or (offered if len(offered) == 1 else ())
    dtype = given(*at, "output_dtype")
    if dtype is not None and dtype not in SPARSE_DTYPES and "sparse" in asked:
        yield _fault((*at, "output_dtype"), f"sparse vectors do not come as {dtype}", dtype, ", ".join(SPARSE_DTYPES))


def _length_of(given: _Given, at: Path, option: str) -> Iterator[Faulty]:
    asked, longest = given(*at, option), given("max_sequence_length")
    if asked is not None and longest and asked > longest:
        wanted = f"at most max_sequence_length, {longest}"
        yield _fault((*at, option), f"{asked} is not {wanted}", asked, wanted)


def _dimensions(given: _Given, at: Path) -> Iterator[Faulty]:
    asked, dim = given(*at, "dimensions"), given("tasks", "dense", "dim")
    known = [*(given("tasks", "dense", "dims") or ()), dim]
    if asked is not None and dim is not None and asked not in known:
        wanted = f"one of {', '.join(map(str, known))}"
        yield _fault((*at, "dimensions"), f"{asked} is not {wanted}, which the model was trained for", asked, wanted)


def _template_of(given: _Given, at: Path, option: str) -> Iterator[Faulty]:
    if written := given(*at, option):
        yield from _template((*at, option), written)


def _hypothesis_of(given: _Given, at: Path) -> Iterator[Faulty]:
    if "{}" not in (written := given(*at, "hypothesis_template") or "{}"):
        path = (*at, "hypothesis_template")
        yield _fault(path, "has no place {} for the label", written, "a sentence with {}")


def _muvera(given: _Given, at: Path) -> Iterator[Faulty]:
    path = (*at, "muvera")
    if not asks_for_muvera(sizes := given(*path)):
        return
    if _encodes(given) and "multivector" not in given.names("tasks"):
        told = "the model has no multivectors to make one vector of"
        yield _fault(path, told, sizes, "nothing, or tasks.multivector")
    elif (dim := given("tasks", "multivector", "dim")) is not None:
        yield from _muvera_sizes(given, path, dim)


def _muvera_sizes(given: _Given, path: Path, dim: int) -> Iterator[Faulty]:
    repetitions, bits, projection = (given(*path, name) for name in ("repetitions", "simhash_bits", "projection"))
    if projection is not None and projection > dim:
        wanted = f"at most tasks.multivector.dim, {dim}"
        yield _fault((*path, "projection"), f"{projection} is not {wanted}", projection, wanted)
    elif (numbers := muvera_numbers(dim, repetitions, bits, projection)) > MUVERA_LARGEST:
        wanted = f"at most {MUVERA_LARGEST} numbers before final_dims: fewer repetitions or bits, or a projection"
        yield _fault(path, f"{numbers} numbers are not {wanted}", numbers, wanted)
    elif (drawn := muvera_drawn(dim, repetitions, bits, projection)) > MUVERA_LARGEST:
        wanted = f"at most {MUVERA_LARGEST} to draw: fewer repetitions, or a smaller projection"
        yield _fault(path, f"{drawn} random numbers are not {wanted}", drawn, wanted)


def _pooling(given: _Given, at: Path) -> Iterator[Faulty]:
    if (pooling := given(*at, "pooling")) is not None and _encodes(given) and "dense" not in given.names("tasks"):
        yield _fault((*at, "pooling"), "the model has no dense vectors to pool", pooling, "nothing, or tasks.dense")


def _default_instruction(given: _Given, at: Path) -> Iterator[Faulty]:
    if (default := given(*at, "default_instruction")) is None or not _encodes(given):
        return
    own = [given("tasks", "dense", f"{of}_template") for of in ("query", "document")]
    templates = [given(*at, name) or of for name, of in zip(("query_template", "doc_template"), own, strict=True)]
    if not any("{instruction}" in (template or "") for template in templates):
        told = "no template has a place {instruction} for it"
        yield _fault((*at, "default_instruction"), told, default, "instruction, or a query_template or doc_template")


def _flat(given: _Given, at: Path) -> Iterator[Faulty]:
    if given(*at, "flat_ner") is False and given("tasks", "extract", "kind") == "entities":
        told = "entities of this model never lie over each other: leave it out"
        yield _fault((*at, "flat_ner"), told, False, "true")


def _encodes(given: _Given) -> bool:
    return any(name in given.names("tasks") for name in ("dense", "sparse", "multivector"))


def _lora(given: _Given, at: Path) -> Iterator[Faulty]:
    known = [name for name in given.names("profiles") if "lora" in given.names("profiles", name)]
    if (lora := given(*at, "lora_id")) and lora not in known:
        allowed = ", ".join(known) or "none: no profile has a lora"
        yield _fault((*at, "lora_id"), f"no profile {lora} declares a LoRA", lora, allowed)


_OF_A_PROFILE: Final[tuple[Callable[..., Iterator[Faulty]], ...]] = (
    *(_outputs, _dtype, _dimensions, _hypothesis_of, _muvera, _pooling, _default_instruction, _flat, _lora),
    *(partial(_length_of, option=name) for name in ("max_seq_length", "query_max_length")),
    *(partial(_template_of, option=name) for name in ("query_template", "doc_template")),
)
_RULES: Final = (
    *(_id, _status, _length, _any_task, _computed, _inputs, _dims, _pairs, _hypothesis, _maxsim, _files),
    *(partial(_prompt, of="query"), partial(_prompt, of="document"), _default_profile, _profiles),
)


def _evidence(spec: ModelSpec) -> Iterator[Finding]:
    if spec.status == "ready" and not spec.parity:
        yield Finding("parity", "nothing shows that the model computes here what it does at home")
    elif spec.status == "ready" and all(each.weights == "random" for each in spec.parity):
        yield Finding("parity", "its architecture was compared with random weights alone, not this checkpoint")


def _unknown_facts(spec: ModelSpec) -> Iterator[Finding]:
    if spec.licence == "unknown":
        yield Finding("licence", "unknown: whether the model may be used, nobody looked up", spec.licence)
    if spec.status == "ready" and spec.parameters == 0:
        yield Finding("parameters", "unknown: how large it is, nobody can see before it is loaded", 0)
    if spec.status == "ready" and spec.bytes == 0:
        yield Finding("bytes", "unknown: whether it fits a machine is not looked at", 0)


def _origin(spec: ModelSpec) -> Iterator[Finding]:
    if all(isinstance(source, LocalSource) for source in spec.sources):
        yield Finding("sources", "only folders: every worker has to have the weights there")
    if not re.fullmatch("[0-9a-f]{40}", spec.revision):
        yield Finding("revision", "no commit (40 hex digits): what it names may change", spec.revision)
    for number, source in enumerate(spec.sources):
        if isinstance(source, HubSource) and source.revision != spec.revision:
            told = "another commit than the model's revision"
            yield finding(("sources", number, "revision"), told, source.revision, spec.revision)


def _unused(spec: ModelSpec) -> Iterator[Finding]:
    read = set(runtime_options.read_by(spec.tasks))
    for name, profile in spec.profiles.items():
        for option in sorted(profile.options.keys() - read):
            path: Path = ("profiles", name, "options", option)
            yield finding(path, "read by no operation of this model", profile.options[option], ", ".join(sorted(read)))
    for number, option in enumerate(spec.options):
        if option not in read:
            yield finding(("options", number), "read by no operation of this model", option, ", ".join(sorted(read)))


_DOUBTS: Final = (_evidence, _unknown_facts, _origin, _unused)


def _unknown_family(spec: ModelSpec, families: Collection[str]) -> Iterator[Finding]:
    if families and spec.status == "ready" and spec.family not in families:
        known = sorted(families)
        meant = structure.nearest(spec.family, known)
        told = f"{spec.family} is no family of this build, so that an adapter has to bring it; {meant}"
        yield Finding("family", told, spec.family, ", ".join(known))
