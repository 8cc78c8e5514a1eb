"""The catalogue on disk: one YAML file per model, read and validated together.

Owns finding the files and reporting the faults of all of them at once. What one document may say is ``model_spec``.
"""

from __future__ import annotations

from pathlib import Path

from sie_config.model import model_spec
from sie_config.model.faults import from_yaml
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import ConfigurationError

PACKAGED = Path(__file__).parent / "models"


def load(folder: Path | None = None) -> dict[str, ModelSpec]:
    """The packaged catalogue, by id. Specs of ``folder`` are added; one with the id of a packaged one replaces it.

    Raises:
        ConfigurationError: lists the faults of all files of both, or says that the folder holds no spec.
    """
    return read(PACKAGED) if folder is None else read(PACKAGED, folder)


def read(*folders: Path) -> dict[str, ModelSpec]:
    """Every spec of the folders, by id; a later folder's replaces an earlier one's, whatever its case.

    Raises:
        ConfigurationError: lists the faults of all files, or says that a folder holds no spec.
    """
    specs: dict[str, ModelSpec] = {}
    faults: list[str] = []
    for folder in folders:
        specs |= _folder(folder, faults)
    if faults:
        raise ConfigurationError(" ".join(faults), field="models", faults=faults)
    return {spec.id: spec for spec in specs.values()}


def _folder(folder: Path, faults: list[str]) -> dict[str, ModelSpec]:
    """The specs of one folder by their ids in lower case; what is wrong with its files is added to ``faults``."""
    specs: dict[str, ModelSpec] = {}
    files = _files(folder)
    if not files:
        faults.append(f"There is no model spec (*.yaml) in {folder}.")
    for path in files:
        try:
            spec = model_spec.parse(from_yaml(path), origin=path.name)
        except ConfigurationError as error:
            faults.append(error.message)
        else:
            if (first := specs.setdefault(spec.id.lower(), spec)) is not spec:
                faults.append(f"{path.name} defines {first.id} a second time.")
    return specs


def _files(folder: Path) -> list[Path]:
    """YAML that is not hidden, as in what is applied. Not JSON, nor below: a model's own files may lie there."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in (".yaml", ".yml") and path.name[0] != ".")


def folder_of(models: str) -> Path | None:
    """The folder of specs that ``--models`` and ``SIE_MODELS`` name; None: they name models, or nothing.

    A folder that holds no spec may be a model's own files, called as the model is.
    """
    folder = Path(models)
    try:
        if not models.strip() or not folder.is_dir():
            return None
    except OSError:  # too long for a path, or not to be looked at
        return None
    return folder if _files(folder) or models.lower() not in map(str.lower, load()) else None


def select(models: str) -> list[ModelSpec]:
    """What ``--models`` and ``SIE_MODELS`` mean: ids separated by commas, a folder of specs, or all when empty.

    Raises:
        ConfigurationError: a fault in the folder.
        ModelNotFoundError: an id the catalogue does not have.
    """
    if not models.strip():
        return list(load().values())
    if (folder := folder_of(models)) is not None:
        return list(read(folder).values())
    registry = Registry(load().values())
    return [registry.written(name.strip()) for name in models.split(",") if name.strip()]
