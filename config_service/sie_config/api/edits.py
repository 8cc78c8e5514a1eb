"""What people may ask of the catalogue: each an edit, from the state as it stands to what is wanted. Pure.

Owns the rules of append, put, patch, delete, apply and rollback, and their refusals; a dry run and a write run the same
edit. What a write does to the state is ``state``'s, how it is made ``writer``'s, how it is asked for ``writes``'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sie_config.api.preconditions import Precondition
from sie_config.epochs.state import State
from sie_config.epochs.store import Stored
from sie_config.epochs.writer import Edit
from sie_config.model import diff, model_spec, structure, validation
from sie_config.model.model_spec import ModelSpec
from sie_config.model.structure import Finding
from sie_config.nearest import Nearest
from sie_sdk.errors import (
    ContentConflictError,
    InvalidInputError,
    InvalidSpecError,
    ModelNotFoundError,
    OwnedElsewhereError,
)

MOST_FAULTS = 100
"""How many are listed of all."""
OWNER = "owner"


def append(document: Mapping[str, Any]) -> Edit:
    """A new model, or new profiles of one that is there; what the document leaves out of that one stays.

    Raises (the edit):
        ContentConflictError: it says something else than what is there; lists the paths.
        InvalidSpecError: the whole is no spec.
    """

    def edit(state: State) -> dict[str, ModelSpec | None]:
        before = _present(state, str(document.get("id", "")))
        if before is None:
            spec = parsed(document)
            return {spec.id: spec}
        spec = parsed(_joined(model_spec.document(before), document))
        if conflicts := list(_conflicts(before, spec)):
            raise ContentConflictError(
                f"{before.id} is there, and {', '.join(conflicts[:5])} would change.",
                field=conflicts[0],
                hint="PUT or PATCH changes what is there; a profile of another name can be added.",
                conflicts=conflicts[:MOST_FAULTS],
            )
        return {spec.id: spec}

    return edit


def put(model: str, document: Mapping[str, Any]) -> Edit:
    """The whole spec of a model, whatever was there. The document may leave out its id.

    Raises (the edit):
        InvalidSpecError: it is no spec.
        InvalidInputError: its id is another's.
    """

    def edit(state: State) -> dict[str, ModelSpec | None]:
        return {model: _of(model, {"id": model, **document})}

    return edit


def patch(model: str, changes: Mapping[str, Any]) -> Edit:
    """A JSON merge patch (RFC 7396) over the spec as written: ``null`` takes a field away, which is its default again.

    Raises (the edit):
        ModelNotFoundError: there is no such model.
        InvalidSpecError, InvalidInputError: as `put`.
    """

    def edit(state: State) -> dict[str, ModelSpec | None]:
        before = _present(state, model)
        if before is None:
            raise _not_found(state, model)
        return {model: _of(model, merged(model_spec.document(before), changes))}

    return edit


def delete(model: str) -> Edit:
    """No such model; but one that was written over the baseline's is the baseline's again.

    Raises (the edit):
        ModelNotFoundError: there never was such a model. One that was deleted is unchanged.
    """

    def edit(state: State) -> dict[str, ModelSpec | None]:
        if (there := state.get(model)) is None:
            raise _not_found(state, model)
        return {_name(model, there): _left(state, model)}

    return edit


class Wanted(msgspec.Struct, frozen=True):
    """What an apply asks for. ``owner``: whose models these are; ``prune`` deletes those of the owner that are not
    among them; ``adopt`` takes over what another owner applied."""

    models: Sequence[Mapping[str, Any]]
    owner: str = ""
    prune: bool = False
    adopt: bool = False


def apply(wanted: Wanted) -> Edit:
    """All of these models as they are described, and with ``prune`` no others of the owner.

    Raises (the edit):
        InvalidSpecError: lists the faults of all of them.
        OwnedElsewhereError: some are another owner's; lists them.
    """
    specs = _all_parsed(wanted)

    def edit(state: State) -> dict[str, ModelSpec | None]:
        made: dict[str, ModelSpec | None] = {spec.id: spec for spec in specs}
        names = {spec.id.lower() for spec in specs}
        if not wanted.adopt and (owned := _owned_elsewhere(state, specs)):
            raise OwnedElsewhereError(
                f"{' and '.join(list(owned)[:5])} {'is' if len(owned) == 1 else 'are'} another owner's.",
                field=OWNER,
                hint='Take them out of what you apply, or take them over with "adopt": true.',
                owned=owned,
            )
        if wanted.prune:
            made |= {
                each.spec.id: _left(state, model)
                for model, each in state.stored.items()
                if each.spec is not None and each.origin == "written" and each.spec.owner == wanted.owner
                if model not in names
            }
        return made

    return edit


def rollback(target: Mapping[str, Stored]) -> Edit:
    """The catalogue as it was: ``target`` is every entry of then, by the lower-case id of its model."""

    def edit(state: State) -> dict[str, ModelSpec | None]:
        gone = {_name(model, each): None for model, each in state.stored.items() if model not in target}
        return gone | {_name(model, each): each.spec for model, each in target.items()}

    return edit


def guarded(edit: Edit, precondition: Precondition, model: str | None) -> Edit:
    """``edit`` under a precondition on the model; where none is named, on the whole catalogue."""

    def held(state: State) -> Mapping[str, ModelSpec | None]:
        if model is None:
            precondition.of_catalogue().hold(state.digest, "The catalogue")
        else:
            present = _present(state, model)
            precondition.hold(None if present is None else model_spec.etag(present), model)
        return edit(state)

    return held


def parsed(document: Mapping[str, Any], at: str = "") -> ModelSpec:
    """A spec; ``at`` comes before each path of its faults.

    Raises:
        InvalidSpecError: lists all faults.
    """
    if faults := _faults(document, at):
        raise _invalid(faults)
    return msgspec.convert(document, ModelSpec)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _of(model: str, document: Mapping[str, Any]) -> ModelSpec:
    spec = parsed(document)
    if spec.id.lower() != model.lower():
        raise InvalidInputError(
            f"The path says {model[:200]}, the spec says {spec.id}.",
            field="id",
            limit=model[:200],
            hint="A model has no other name: write the new one, delete the old one.",
        )
    return spec


def _present(state: State, model: str) -> ModelSpec | None:
    stored = state.get(model)
    return None if stored is None else stored.spec


def _name(model: str, stored: Stored) -> str:
    """A model's own name; a tombstone knows it no more."""
    return model if stored.spec is None else stored.spec.id


def _left(state: State, model: str) -> ModelSpec | None:
    """What is there when what was written of a model is not."""
    stored = state.get(model)
    return state.baseline.get(model.lower()) if stored is not None and stored.origin == "written" else None


def _joined(written: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    joined = {**written, **document}
    if isinstance(profiles := document.get("profiles"), Mapping):
        joined["profiles"] = {**written.get("profiles", {}), **profiles}
    return joined


def _conflicts(before: ModelSpec, after: ModelSpec) -> Iterator[str]:
    """The paths that would change, but for profiles that are new."""
    new = after.profiles.keys() - before.profiles.keys()
    kept = {name: profile for name, profile in after.profiles.items() if name not in new}
    as_before = msgspec.structs.replace(after, profiles=kept)
    for field in diff.fields(model_spec.document(before), model_spec.document(as_before)):
        yield field.path


def _all_parsed(wanted: Wanted) -> list[ModelSpec]:
    faults: list[Finding] = []
    if wanted.prune and not wanted.owner:
        faults.append(Finding(OWNER, "missing; prune deletes what this owner applied before", "", "a text"))
    documents: list[Mapping[str, Any]] = []
    for index, document in enumerate(wanted.models):
        owner = document.get(OWNER, wanted.owner)
        if wanted.owner and owner != wanted.owner:
            path, told = f"models[{index}].{OWNER}", f"another than {wanted.owner!r}, who applies it"
            faults.append(Finding(path, told, structure.brief(owner), wanted.owner))
        documents.append({**document, OWNER: wanted.owner} if wanted.owner else document)
        faults += _faults(documents[-1], f"models[{index}].")
    counts = Counter(str(document.get("id")).lower() for document in documents)
    faults += [Finding("models", f"{model} is there {count} times") for model, count in counts.items() if count > 1]
    if faults:
        raise _invalid(faults)
    return [msgspec.convert(document, ModelSpec) for document in documents]


def _owned_elsewhere(state: State, specs: Sequence[ModelSpec]) -> dict[str, str]:
    present = {spec.id: _present(state, spec.id) for spec in specs}
    return {
        spec.id: there.owner
        for spec in specs
        if (there := present[spec.id]) is not None and there.owner not in ("", spec.owner)
    }


def _faults(document: Mapping[str, Any], at: str) -> list[Finding]:
    return [msgspec.structs.replace(each, path=f"{at}{each.path}") for each in validation.faults(dict(document))]


def _invalid(faults: list[Finding]) -> InvalidSpecError:
    count = f"has {len(faults)} faults, the first" if len(faults) > 1 else "is wrong"
    return InvalidSpecError(
        f"The spec {count}: {faults[0]}.",
        field=faults[0].path,
        hint="GET /v1/configs/schema is what a spec may say.",
        faults=msgspec.to_builtins(faults[:MOST_FAULTS]),
    )


def _not_found(state: State, model: str) -> ModelNotFoundError:
    state.refuse_unread(model)
    nearest = Nearest({spec.id.lower(): spec.id for spec in state.specs()}).to(model.lower())
    hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "GET /v1/configs/models lists them."
    return ModelNotFoundError(f"There is no model {model[:200]!r}.", field="model", hint=hint, nearest=nearest)
