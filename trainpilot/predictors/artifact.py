"""A predictor as a folder: ``card.json`` and boosters in ``*.ubj``. Nothing in it is ever executed.

Everything is checked before it is used: the schema, the names, sizes and hashes of the files, the terms and features.
The card holds the hash of its own content, so a number that was changed later is noticed.
xgboost alone would load a file of a future version, and would take a bare array in any column order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainpilot.errors import ArtifactError, PredictorError

if TYPE_CHECKING:
    from trainpilot.predictors.boosted import BoostedResidual
    from trainpilot.predictors.model import TargetModel
    from trainpilot.predictors.operators import OperatorModel
    from trainpilot.predictors.predictor import Predictor

SCHEMA = 4
KIND = "trainpilot-predictor"
CARD_FILE = "card.json"
BOOSTER_FILE = "booster.ubj"
OPERATORS_FILE = "operators.ubj"
_FILES = (CARD_FILE, BOOSTER_FILE, OPERATORS_FILE)
_LARGEST_FILE_BYTES = 512 * 2**20
_CARD_KEYS = ("backend", "created_at", "versions", "data", "feature_names", "categories", "contexts", "targets")
HASH_KEY = "content_sha256"


def save_predictor(predictor: Predictor, folder: Path) -> None:
    """Write a predictor; the folder appears complete or not at all.

    Raises:
        ArtifactError: The folder exists already, or cannot be written.
    """
    if folder.exists():
        raise ArtifactError(f"{folder} exists already")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written: {error.strerror or error}") from error
    try:
        operators = predictor.step.operators_
        card = {
            **_card(predictor),
            "booster": _save_booster(draft / BOOSTER_FILE, predictor.step.boosted_),
            "operators": None
            if operators is None
            else {
                "kinds": operators.to_card(),
                "booster": _save_booster(draft / OPERATORS_FILE, operators.boosted),
            },
        }
        text = json.dumps({**card, HASH_KEY: content_hash(card)}, indent=1, allow_nan=False)
        _write(draft / CARD_FILE, text.encode())
        draft.chmod(0o755)
        draft.rename(folder)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _save_booster(path: Path, boosted: BoostedResidual | None) -> dict[str, Any] | None:
    """Write a booster; its entry in the card."""
    if boosted is None:
        return None
    content = bytes(boosted.booster_.save_raw("ubj"))
    _write(path, content)
    return {"file": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def load_predictor(folder: Path) -> Predictor:
    """Read a predictor after checking it.

    Raises:
        ArtifactError: A file is missing, cut, changed, foreign or of another schema; one line that names the file.
    """
    card = read_card(folder)
    try:
        return _restore(folder, card)
    except ArtifactError:
        raise
    except (PredictorError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise ArtifactError(f"{folder / CARD_FILE} is not a valid card ({message}): fit the predictor again") from error


def read_card(folder: Path) -> dict[str, Any]:
    """Read the card of a predictor after checking the folder and the schema, but not the booster.

    Raises:
        ArtifactError: The folder holds foreign files, or the card is missing, damaged or of another schema.
    """
    path = folder / CARD_FILE
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a predictor: no such folder")
    foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in _FILES)
    if foreign:
        raise ArtifactError(
            f"{folder / foreign[0]} does not belong to a predictor: only {', '.join(_FILES)} are read, pickles never"
        )
    content = _read(path)
    try:
        card = json.loads(content, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: not valid JSON ({error})") from None
    if not isinstance(card, dict) or card.get("kind") != KIND:
        raise ArtifactError(f"{path} is not the card of a predictor")
    if card.get("schema") != SCHEMA:
        raise ArtifactError(
            f"{path} has schema {card.get('schema')!r}, this version reads {SCHEMA}: fit the predictor again"
        )
    missing = [key for key in (*_CARD_KEYS, HASH_KEY) if key not in card]
    if missing:
        raise ArtifactError(f"{path} lacks {missing[0]!r}: fit the predictor again")
    if content_hash(card) != card[HASH_KEY]:
        raise ArtifactError(f"{path} was changed after it was written (hash differs): fit the predictor again")
    return card


def content_hash(card: Mapping[str, Any]) -> str:
    """SHA-256 of a card without its own hash, in one canonical form: what a reader of the file gets, keys sorted."""
    content = json.loads(json.dumps({name: value for name, value in card.items() if name != HASH_KEY}))
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _card(predictor: Predictor) -> dict[str, Any]:
    from trainpilot.predictors.features import feature_names

    domain = predictor.step.domain_
    provenance = dataclasses.asdict(predictor.provenance)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "backend": predictor.backend,
        "created_at": provenance.pop("created_at"),
        "versions": provenance.pop("versions"),
        "data": provenance,
        "feature_names": list(feature_names(domain.categories)),
        "categories": {name: list(values) for name, values in dataclasses.asdict(domain.categories).items()},
        "contexts": [list(context) for context in _contexts(predictor)],
        "targets": {name: _target_card(model, _contexts(predictor)) for name, model in predictor.targets.items()},
    }


def _contexts(predictor: Predictor) -> list[Any]:
    return sorted({context for model in predictor.targets.values() for context in model.domain_.contexts})


def _target_card(model: TargetModel, contexts: list[Any]) -> dict[str, Any]:
    label = {context: str(contexts.index(context)) for context in contexts}
    shrinkage = model.shrinkage_
    return {
        "unit": model.target.unit,
        "additive": model.additive_.to_card(model.target.part_names),
        "shrinkage": {
            "weight": shrinkage.weight,
            "reach": None if math.isinf(shrinkage.reach) else shrinkage.reach,
        },
        "calibration": {label[context]: dict(figures) for context, figures in model.figures_.items()},
        "intervals": model.intervals_.to_card(),
        "domain": {**model.domain_.to_card(), "contexts": [label[context] for context in model.domain_.contexts]},
        "metrics": model.metrics_,
    }


def _restore(folder: Path, card: Mapping[str, Any]) -> Predictor:
    from trainpilot.predictors.features import SIZE_FEATURES, Categories, feature_names
    from trainpilot.predictors.predictor import Predictor, Provenance
    from trainpilot.predictors.table import Context
    from trainpilot.predictors.targets import STEP_TIME, TARGETS

    categories = Categories(**{name: tuple(values) for name, values in card["categories"].items()})
    names = feature_names(categories)
    if list(names) != card["feature_names"]:
        raise ArtifactError(
            f"{folder / CARD_FILE}: its features are not those of this version, or in another order: "
            "fit the predictor again"
        )
    _check_xgboost(folder, str(card["versions"].get("xgboost", "")))
    booster = _load_booster(folder / BOOSTER_FILE, card.get("booster"), names)
    contexts = [Context(*entry) for entry in card["contexts"]]
    known = {target.name: target for target in TARGETS}
    if STEP_TIME.name not in card["targets"]:
        raise ArtifactError(f"{folder / CARD_FILE} lacks the target {STEP_TIME.name}")
    targets: dict[str, TargetModel] = {}
    for name, content in card["targets"].items():
        if name not in known:
            raise ArtifactError(f"{folder / CARD_FILE} has the unknown target {name!r}")
        targets[name] = _restore_target(known[name], content, categories, contexts)
        # Targets with labels of the same rows have one domain and one set of figures: where a step lies is found once.
        step = card["targets"][STEP_TIME.name]
        if STEP_TIME.name in targets and all(content[key] == step[key] for key in ("domain", "calibration")):
            targets[name].domain_ = targets[STEP_TIME.name].domain_
            targets[name].figures_ = targets[STEP_TIME.name].figures_
    if booster is not None:
        from trainpilot.predictors.boosted import BoostedResidual

        targets[STEP_TIME.name].boosted_ = BoostedResidual.from_booster(booster, rising=SIZE_FEATURES)
    targets[STEP_TIME.name].operators_ = _restore_operators(folder, card.get("operators"))
    data = dict(card["data"])
    for name in ("families", "models", "warnings"):
        data[name] = tuple(data[name])
    provenance = Provenance(created_at=card["created_at"], versions=card["versions"], **data)
    return Predictor(backend=card["backend"], targets=targets, provenance=provenance)


def _restore_operators(folder: Path, card: Mapping[str, Any] | None) -> OperatorModel | None:
    from trainpilot.predictors.boosted import BoostedResidual
    from trainpilot.predictors.groups import OPERATOR_FEATURES
    from trainpilot.predictors.operators import TREES, OperatorModel

    booster = _load_booster(folder / OPERATORS_FILE, None if card is None else card["booster"], OPERATOR_FEATURES)
    if card is None or booster is None:
        return None
    return OperatorModel.from_card(card["kinds"], BoostedResidual.from_booster(booster, **TREES))


def _restore_target(target: Any, card: Mapping[str, Any], categories: Any, contexts: list[Any]) -> TargetModel:
    from trainpilot.predictors.analytic import AdditiveModel
    from trainpilot.predictors.crossfit import Shrinkage
    from trainpilot.predictors.domain import Domain
    from trainpilot.predictors.intervals import Intervals
    from trainpilot.predictors.model import TargetModel

    key = {str(position): context for position, context in enumerate(contexts)}
    model = TargetModel(target)
    model.additive_ = AdditiveModel.from_card(card["additive"], target.part_names)
    reach = card["shrinkage"]["reach"]
    weight = float(card["shrinkage"]["weight"])
    model.shrinkage_ = Shrinkage(weight, math.inf if reach is None else float(reach))
    if not 0 <= weight <= 1 or not model.shrinkage_.reach > 0:
        raise PredictorError(f"shrinkage of weight {weight} and reach {reach} is none")
    model.figures_ = {key[label]: dict(figures) for label, figures in card["calibration"].items()}
    for figures in model.figures_.values():
        for name, value in figures.items():
            if not value > 0:
                raise PredictorError(f"calibration figure {name} is {value}, not above 0")
    model.intervals_ = Intervals.from_card(card["intervals"])
    for width in (model.intervals_.inside, model.intervals_.outside):
        if width is not None and not width > 0:
            raise PredictorError(f"an interval has the half-width {width}, not above 0")
    if not 0 < model.intervals_.level < 1:
        raise PredictorError(f"level {model.intervals_.level} is no share")
    model.level = model.intervals_.level
    own = [key[label] for label in card["domain"]["contexts"]]
    model.domain_ = Domain.from_card(card["domain"], categories, own)
    model.metrics_ = dict(card["metrics"])
    model.held_out_ = None
    model.boosted_ = model.operators_ = None
    return model


def _check_xgboost(folder: Path, written_by: str) -> None:
    """Refuse a predictor of a newer major version of xgboost, which would load, but perhaps mean something else."""
    from importlib.metadata import version

    installed = version("xgboost")
    major = written_by.split(".")[0]
    if not major.isdigit() or int(major) > int(installed.split(".")[0]):
        raise ArtifactError(f"{folder / CARD_FILE} was written with xgboost {written_by}, installed is {installed}")


def _load_booster(path: Path, entry: Mapping[str, Any] | None, names: tuple[str, ...]) -> Any:
    if entry is None:
        if path.exists():
            raise ArtifactError(f"{path} is not mentioned in {CARD_FILE}: fit the predictor again")
        return None
    content = _read(path)
    if len(content) != entry["bytes"]:
        raise ArtifactError(
            f"{path} is damaged: {len(content)} bytes instead of {entry['bytes']}: fit the predictor again"
        )
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise ArtifactError(
            f"{path} is not the file that {CARD_FILE} describes (hash differs): fit the predictor again"
        )
    import xgboost

    booster = xgboost.Booster()
    try:
        booster.load_model(bytearray(content))
    except xgboost.core.XGBoostError as error:
        first = str(error).strip().splitlines()[0]
        raise ArtifactError(f"{path} cannot be read by xgboost {xgboost.__version__}: {first}") from None
    if booster.feature_names != list(names):
        raise ArtifactError(f"{path} has other features than {CARD_FILE}: fit the predictor again")
    return booster


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE_BYTES:
            raise ArtifactError(f"{path} is too large for a predictor: {size} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from None


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
