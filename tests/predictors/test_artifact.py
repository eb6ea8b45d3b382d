"""The predictor as a folder: what is written is what is read, and everything else is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil

import numpy as np
import pytest

from trainpilot.errors import ArtifactError
from trainpilot.predictors.artifact import (
    BOOSTER_FILE,
    CARD_FILE,
    HASH_KEY,
    SCHEMA,
    content_hash,
    load_predictor,
    save_predictor,
)
from trainpilot.predictors.crossfit import Shrinkage


@pytest.fixture(scope="session")
def saved(predictor, tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifact") / "0001"
    save_predictor(predictor, folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(saved, tmp_path / "0001")


def rewrite(folder, **changes):
    card = json.loads((folder / CARD_FILE).read_text())
    card.update(changes)
    sign(folder, card)


def sign(folder, card):
    """Write a card as a fit would have written it, so that the checks behind its hash are reached."""
    (folder / CARD_FILE).write_text(json.dumps({**card, HASH_KEY: content_hash(card)}))


def refusal(folder):
    with pytest.raises(ArtifactError) as caught:
        load_predictor(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert folder.name in message
    return message


def test_c04_predictions_are_equal_to_the_bit_after_save_and_load(predictor, labels, saved):
    loaded = load_predictor(saved)
    table = labels.table
    assert set(loaded.targets) == set(predictor.targets) == {"step_time_s", "setup_time_s", "peak_memory_bytes"}
    for name, model in predictor.targets.items():
        assert list(loaded.targets[name].forecast(table)) == list(model.forecast(table))
    assert loaded.provenance == predictor.provenance
    assert loaded.contexts == predictor.contexts
    assert loaded.parts_in_use == predictor.parts_in_use


def test_c04_the_boosted_part_survives_to_the_bit(predictor, labels, tmp_path):
    step = predictor.step
    before = step.shrinkage_
    step.shrinkage_ = Shrinkage(1.0, 2.0)
    try:
        save_predictor(predictor, tmp_path / "0001")
        expected = step.predict(labels.table)
        assert not np.array_equal(expected, step.additive_total(labels.table))
    finally:
        step.shrinkage_ = before
    np.testing.assert_array_equal(load_predictor(tmp_path / "0001").step.predict(labels.table), expected)


def test_the_folder_holds_two_files_and_the_card_says_what_they_are(saved):
    assert sorted(path.name for path in saved.iterdir()) == [BOOSTER_FILE, CARD_FILE]
    card = json.loads((saved / CARD_FILE).read_text())
    content = (saved / BOOSTER_FILE).read_bytes()
    assert card["schema"] == SCHEMA
    assert card["booster"] == {
        "file": BOOSTER_FILE,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert card["categories"] == {
        "threads": [1],
        "dtype": ["float32"],
        "memory_format": ["contiguous"],
        "optimizer": ["adam"],
    }
    assert {"torch", "xgboost"} <= set(card["versions"])
    assert card["targets"]["step_time_s"]["metrics"]["family"]["groups"] == 10


class _Mark:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", ["model.pkl", "booster.pickle", "notes.txt"])
def test_c04_a_pickle_in_the_folder_is_refused_and_never_opened(folder, tmp_path, name):
    marker = tmp_path / "marker"
    (folder / name).write_bytes(pickle.dumps(_Mark(marker)))
    assert name in refusal(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", [CARD_FILE, BOOSTER_FILE])
def test_c04_a_pickle_under_a_right_name_is_refused_and_never_opened(folder, tmp_path, name):
    marker = tmp_path / "marker"
    (folder / name).write_bytes(pickle.dumps(_Mark(marker)))
    assert name in refusal(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", [CARD_FILE, BOOSTER_FILE])
@pytest.mark.parametrize("length", [0, 2000])
def test_c04_a_cut_file_is_one_line_that_names_it(folder, name, length):
    path = folder / name
    path.write_bytes(path.read_bytes()[:length])
    assert name in refusal(folder)


def test_a_missing_file_or_folder(folder, tmp_path):
    (folder / BOOSTER_FILE).unlink()
    assert BOOSTER_FILE in refusal(folder)
    assert "no such folder" in refusal(tmp_path / "none")


def test_one_changed_byte_of_the_booster_is_noticed(folder):
    path = folder / BOOSTER_FILE
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert "hash" in refusal(folder)


def test_a_damaged_booster_with_a_fitting_hash_is_one_line_all_the_same(folder):
    content = (folder / BOOSTER_FILE).read_bytes()[:2000]
    (folder / BOOSTER_FILE).write_bytes(content)
    rewrite(
        folder,
        booster={"file": BOOSTER_FILE, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
    )
    assert "xgboost" in refusal(folder)


def test_c04_a_card_of_another_schema_is_refused(folder):
    rewrite(folder, schema=SCHEMA + 1)
    assert f"schema {SCHEMA + 1}, this version reads {SCHEMA}" in refusal(folder)


def test_c04_a_predictor_of_a_newer_xgboost_is_refused(folder):
    card = json.loads((folder / CARD_FILE).read_text())
    rewrite(folder, versions={**card["versions"], "xgboost": "9.0.0"})
    assert "xgboost 9.0.0" in refusal(folder)


def test_c04_swapped_features_are_refused(folder):
    names = json.loads((folder / CARD_FILE).read_text())["feature_names"]
    rewrite(folder, feature_names=[names[1], names[0], *names[2:]])
    assert "another order" in refusal(folder)


def test_swapped_categories_are_refused(folder):
    # The names still agree with each other, but no longer with those inside the booster.
    card = json.loads((folder / CARD_FILE).read_text())
    card["categories"]["optimizer"] = ["sgd"]
    names = [name.replace("optimizer=adam", "optimizer=sgd") for name in card["feature_names"]]
    rewrite(folder, categories=card["categories"], feature_names=names)
    assert "other features" in refusal(folder)


@pytest.mark.parametrize("key", ["targets", "contexts", "categories", "data"])
def test_a_card_that_lacks_a_part_is_refused(folder, key):
    card = json.loads((folder / CARD_FILE).read_text())
    del card[key]
    (folder / CARD_FILE).write_text(json.dumps(card))
    assert key in refusal(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda target: target["additive"].update(common=[1.0]),
        lambda target: target["additive"].update(common=[float("nan")] * len(target["additive"]["common"])),
        lambda target: target["additive"].update(terms=["a"]),
        lambda target: target.update(shrinkage="all"),
        lambda target: target["domain"].update(mixes=[[1.0]]),
        lambda target: target["domain"].update(contexts=["7"]),
        lambda target: target["intervals"].update(colour="red"),
        lambda target: target.pop("intervals"),
        lambda target: target["intervals"].update(level=1.5),
        lambda target: target["intervals"].update(inside=-0.1),
        lambda target: target["shrinkage"].update(weight=-1.0),
        lambda target: target["shrinkage"].update(reach=0.0),
        lambda target: target["calibration"]["0"].update(dispatch_s=-1e-6),
    ],
)
def test_a_card_with_a_spoiled_part_is_refused(folder, spoil):
    card = json.loads((folder / CARD_FILE).read_text())
    spoil(card["targets"]["step_time_s"])
    sign(folder, card)
    assert CARD_FILE in refusal(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda card: card["targets"]["step_time_s"]["additive"].update(
            common=[-value for value in card["targets"]["step_time_s"]["additive"]["common"]]
        ),
        lambda card: card["targets"]["peak_memory_bytes"]["additive"]["common"].reverse(),
        lambda card: card["data"].update(rows=10**6),
        lambda card: card.update(backend="cuda"),
    ],
)
def test_a_number_that_was_changed_by_hand_is_noticed(folder, change):
    card = json.loads((folder / CARD_FILE).read_text())
    change(card)
    (folder / CARD_FILE).write_text(json.dumps(card))
    assert "was changed after it was written" in refusal(folder)


def test_the_layout_of_the_card_is_free(folder, predictor):
    card = json.loads((folder / CARD_FILE).read_text())
    (folder / CARD_FILE).write_text(json.dumps(dict(reversed(card.items()))))
    assert load_predictor(folder).provenance == predictor.provenance
    del card[HASH_KEY]
    (folder / CARD_FILE).write_text(json.dumps(card))
    assert HASH_KEY in refusal(folder)


def test_another_json_file_is_no_card(folder):
    (folder / CARD_FILE).write_text("[]")
    assert "not the card of a predictor" in refusal(folder)


def test_an_existing_folder_is_never_overwritten(predictor, folder):
    before = (folder / CARD_FILE).read_bytes()
    with pytest.raises(ArtifactError, match="exists already"):
        save_predictor(predictor, folder)
    assert (folder / CARD_FILE).read_bytes() == before


def test_nothing_is_left_behind_when_writing_fails(predictor, tmp_path, monkeypatch):
    from trainpilot.predictors import artifact

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact, "_write", full)
    with pytest.raises(ArtifactError, match="No space left on device"):
        save_predictor(predictor, tmp_path / "home" / "0001")
    assert list((tmp_path / "home").iterdir()) == []
