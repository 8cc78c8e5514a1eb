"""What is wrong with a model spec as it was written, all of it at once; and what of a valid one is doubtful. Pure.

Owns the rules between fields and the warnings. Whether each field is what its type says is ``structure``'s. A rule that
needs a field with a fault says nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from sie_config import runtime_options, structure, template
from sie_config.model_name import DEFAULT
from sie_config.model_spec import ModelSpec
from sie_config.sources import HubSource, LocalSource
from sie_config.structure import Finding, Path, finding
from sie_config.tasks import Extract, Score, Tasks

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

    def __init__(self, document: dict[str, Any], faulty: list[Path]) -> None:
        self._document = document
        self._faulty = faulty

    def __call__(self, *path: str) -> Any:
        """What stands at ``path``; where nothing does, a field's default, and None further inside."""
        if any(each[: len(path)] == path[: len(each)] for each in self._faulty):
            raise _FaultyError
        value: Any = self._document
        for step in path:
            value = value.get(step, _DEFAULTS.get(step) if len(path) == 1 else None) if value is not None else None
        return value

    def names(self, *path: str) -> list[str]:
        """The names of the fields or entries that a mapping has, whatever is wrong inside of them."""
        value: Any = self._document
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return [name for name, held in value.items() if held is not None] if isinstance(value, dict) else []


_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(ModelSpec)}


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
    if (dense := given("tasks", "dense")) is None:
        return
    for number, dims in enumerate(dense.get("dims", ())):
        if dims >= dense["dim"]:
            path, wanted = ("tasks", "dense", "dims", number), f"less than dim, {dense['dim']}"
            yield _fault(path, f"{dims} is not {wanted}", dims, wanted)


def _prompts(given: _Given) -> Iterator[Faulty]:
    dense = given("tasks", "dense") or {}
    for name in ("query", "document"):
        path: Path = ("tasks", "dense", f"{name}_template")
        if not (written := dense.get(f"{name}_template")):
            continue
        if told := template.fault(written):
            yield _fault(path, told, written, "a text with {text}, and {instruction} if you like")
        if dense.get(f"{name}_prompt"):
            told = f"stands instead of {name}_prompt, which is there too"
            yield _fault(path, told, written, f"{name}_template or {name}_prompt")


def _pairs(given: _Given) -> Iterator[Faulty]:
    score = given("tasks", "score") or {}
    if score.get("kind") != "yes_no":
        return
    written = score.get("template", Score().template)
    places = {template.fault(written, known) for known in (_PAIR, (_PAIR[1], _PAIR[0], _PAIR[2]))} - {""}
    for told in sorted(places):
        wanted = "a text with {query} and {document}, and {instruction} if you like"
        yield _fault(("tasks", "score", "template"), told, written, wanted)


_PAIR = ("query", "document", "instruction")


def _hypothesis(given: _Given) -> Iterator[Faulty]:
    written = (given("tasks", "extract") or {}).get("hypothesis", Extract("entailment").hypothesis)
    if "{}" not in written:
        path: Path = ("tasks", "extract", "hypothesis")
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


def _profile_outputs(given: _Given) -> Iterator[Faulty]:
    tasks = given.names("tasks")
    offered = [name for name in tasks if name in _OUTPUTS]
    for profile in given.names("profiles") if tasks else ():
        at = ("profiles", profile, "options", "output_types")
        try:
            asked = given(*at) or []
        except _FaultyError:
            continue
        encoded = ["dense"] if "multivector" in offered and "muvera" in given.names(*at[:-1]) else []
        for number, output in enumerate(asked):
            if output not in (*offered, *encoded):
                yield _fault((*at, number), f"the model has no {output} output", output, ", ".join(offered))


_OUTPUTS = ("dense", "sparse", "multivector")


def _profile_sizes(given: _Given) -> Iterator[Faulty]:
    """What the engine would refuse of every request with the profile."""
    for profile in given.names("profiles"):
        at = ("profiles", profile, "options")
        try:
            options = given(*at) or {}
        except _FaultyError:
            continue
        yield from _told_by(lambda part, at=at, options=options: _lengths(part, at, options), given)  # type: ignore[misc]
        yield from _told_by(lambda part, at=at, options=options: _widths(part, at, options), given)  # type: ignore[misc]
        if "{}" not in (options.get("hypothesis_template") or "{}"):
            path = (*at, "hypothesis_template")
            yield _fault(path, "has no place {} for the label", options["hypothesis_template"], "a sentence with {}")
        if options.get("muvera") is False:
            yield _fault((*at, "muvera"), "false is refused: leave it out", False, "true, or a mapping of sizes")
        if (lora := options.get("lora_id")) and lora not in (known := [*_loras(given)]):
            told = f"no profile {lora} declares a LoRA"
            yield _fault((*at, "lora_id"), told, lora, ", ".join(known) or "none: no profile has a lora")
        for name in ("query_template", "doc_template"):
            if (written := options.get(name)) and (told := template.fault(written)):
                yield _fault((*at, name), told, written, "a text with {text}, and {instruction} if you like")


def _loras(given: _Given) -> Iterator[str]:
    return (name for name in given.names("profiles") if "lora" in given.names("profiles", name))


def _lengths(given: _Given, at: Path, options: dict[str, Any]) -> Iterator[Faulty]:
    longest = given("max_sequence_length")
    for name in ("max_seq_length", "query_max_length"):
        if (asked := options.get(name)) is not None and longest and asked > longest:
            wanted = f"at most max_sequence_length, {longest}"
            yield _fault((*at, name), f"{asked} is not {wanted}", asked, wanted)


def _widths(given: _Given, at: Path, options: dict[str, Any]) -> Iterator[Faulty]:
    asked, dense = options.get("dimensions"), given("tasks", "dense")
    if asked is not None and dense is not None and asked not in (*dense.get("dims", ()), dense["dim"]):
        wanted = f"one of {', '.join(map(str, (*dense.get('dims', ()), dense['dim'])))}"
        yield _fault((*at, "dimensions"), f"{asked} is not {wanted}, which the model was trained for", asked, wanted)


_RULES: Final = (
    *(_id, _status, _length, _any_task, _computed, _inputs, _dims, _prompts, _pairs, _hypothesis, _maxsim, _files),
    *(_default_profile, _profile_outputs, _profile_sizes),
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
