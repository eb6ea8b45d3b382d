import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from trainpilot import zoo
from trainpilot.errors import DataError, UsageError
from trainpilot.zoo.data import (
    adapt_images,
    batches,
    digits,
    load_dataset,
    settings_for_data,
    stratified_split,
    synthetic,
    training_data,
    validate_arrays,
    write_digits,
)

X = np.arange(40, dtype=np.float32).reshape(10, 2, 2)
Y = np.array([0, 1] * 5)


def write_folder(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def message_of(path) -> str:
    with pytest.raises(DataError) as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


# digits


def test_digits_are_those_of_scikit_learn():
    bunch, data = load_digits(), digits()
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.classes, data.source, data.sample_shape) == (10, "real", (8, 8))
    ours = np.concatenate((data.x_train, data.x_val)).reshape(1797, 64)
    labelled = np.column_stack((ours, np.concatenate((data.y_train, data.y_val))))
    theirs = np.column_stack((bunch.data, bunch.target))
    np.testing.assert_array_equal(labelled[np.lexsort(labelled.T)], theirs[np.lexsort(theirs.T)])


def test_the_held_out_digits_are_a_fifth_of_each_class_and_decided_by_the_seed():
    data = digits()
    whole = np.bincount(load_digits().target)
    np.testing.assert_array_equal(np.bincount(data.y_val), np.round(0.2 * whole).astype(int))
    np.testing.assert_array_equal(digits().x_val, data.x_val)
    assert not np.array_equal(digits(seed=1).x_val, data.x_val)


def test_written_digits_are_loaded_again(tmp_path):
    folder = tmp_path / "new" / "test_data_setup"
    write_digits(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["X_train.npy", "X_val.npy", "y_train.npy", "y_val.npy"]
    loaded, data = load_dataset(folder), digits()
    for part in ("x_train", "y_train", "x_val", "y_val"):
        np.testing.assert_array_equal(getattr(loaded, part), getattr(data, part))
    assert (loaded.name, loaded.classes) == ("test_data_setup", 10)


def test_writing_digits_keeps_what_is_there_unless_told(tmp_path):
    write_digits(tmp_path)
    before = (tmp_path / "X_val.npy").stat().st_mtime_ns
    write_digits(tmp_path)  # the same content: nothing to do
    assert (tmp_path / "X_val.npy").stat().st_mtime_ns == before
    np.save(tmp_path / "y_train.npy", Y)
    (tmp_path / "X_val.npy").unlink()
    with pytest.raises(DataError, match=r"already holds y_train\.npy with other content; nothing was written"):
        write_digits(tmp_path)
    assert not (tmp_path / "X_val.npy").exists()
    np.testing.assert_array_equal(np.load(tmp_path / "y_train.npy"), Y)
    write_digits(tmp_path, overwrite=True)
    assert load_dataset(tmp_path).classes == 10


def test_a_full_disk_leaves_no_partial_file(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match="cannot be written: No space left on device"):
        write_digits(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_writing_digits_over_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_digits(tmp_path / "file")


# loading


@pytest.mark.parametrize("kind", ["folder", "npz", "csv", "parquet"])
def test_all_formats_give_the_same_data(tmp_path, kind):
    flat = X.reshape(10, 4)
    table = pd.DataFrame(flat, columns=list("abcd")).assign(label=Y)
    if kind == "folder":
        path = write_folder(tmp_path / "d", X_train=flat, y_train=Y)
    elif kind == "npz":
        path = tmp_path / "d.npz"
        np.savez(path, X_train=flat, y_train=Y)
    elif kind == "csv":
        path = tmp_path / "d.csv"
        table.to_csv(path, index=False)
    else:
        path = tmp_path / "d.parquet"
        table.to_parquet(path)
    data = load_dataset(path)
    # a fifth of each class of five is one sample
    assert (data.x_train.shape, data.x_val.shape, data.classes, data.name) == ((8, 4), (2, 4), 2, "d")
    assert data.x_train.dtype == np.float32
    rebuilt = np.concatenate((data.x_train, data.x_val))
    np.testing.assert_array_equal(rebuilt[np.argsort(rebuilt[:, 0])], flat)


def test_held_out_files_are_used(tmp_path):
    folder = write_folder(tmp_path / "d", X_train=X, y_train=Y, X_val=X[:3] + 100, y_val=np.array([2, 1, 0]))
    data = load_dataset(folder)
    assert (len(data.x_train), len(data.x_val), data.classes) == (10, 3, 3)


def test_a_missing_dataset_names_the_command_that_makes_one(tmp_path):
    path = tmp_path / "none"
    assert message_of(path) == (
        f"dataset {path}: there is no such folder or file; 'trainpilot sample digits {path}' makes one"
    )


def test_an_empty_folder(tmp_path):
    assert "the folder is empty" in message_of(tmp_path)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1,2")
    assert "not a format that can be read; give a folder with X_train.npy" in message_of(path)


def test_missing_files_are_named(tmp_path):
    folder = write_folder(tmp_path / "d", X_train=X)
    assert "y_train.npy missing" in message_of(folder)
    np.savez(tmp_path / "d.npz", X_train=X, labels=Y)
    assert "y_train missing; the file holds X_train, labels" in message_of(tmp_path / "d.npz")


def test_half_of_the_held_out_files(tmp_path):
    folder = write_folder(tmp_path / "d", X_train=X, y_train=Y, y_val=Y)
    assert "X_val is missing: held-out data needs both" in message_of(folder)


def test_object_arrays_are_never_unpickled(tmp_path):
    marker = tmp_path / "marker"

    class Payload:
        def __reduce__(self):
            return (Path.touch, (marker,))

    objects = np.array([Payload()] * 10, dtype=object)
    folder = write_folder(tmp_path / "d", y_train=Y)
    np.save(folder / "X_train.npy", objects, allow_pickle=True)
    assert "X_train.npy: holds Python objects, which are never loaded" in message_of_file(folder, "X_train.npy")
    (folder / "X_train.npy").write_bytes(pickle.dumps(Payload()))
    assert "is damaged or truncated" in message_of_file(folder, "X_train.npy")
    np.savez(tmp_path / "d.npz", X_train=objects, y_train=Y)
    assert "holds Python objects" in message_of(tmp_path / "d.npz")
    assert not marker.exists()


def message_of_file(folder: Path, name: str) -> str:
    with pytest.raises(DataError) as caught:
        load_dataset(folder)
    assert "\n" not in str(caught.value)
    assert str(folder / name) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 60, 140, -1])
def test_a_truncated_npy_file(tmp_path, keep):
    folder = write_folder(tmp_path / "d", X_train=X, y_train=Y)
    path = folder / "X_train.npy"
    path.write_bytes(path.read_bytes()[:keep])
    assert "is damaged or truncated" in message_of_file(folder, "X_train.npy")


def test_a_header_that_promises_more_than_memory_holds(tmp_path):
    folder = write_folder(tmp_path / "d", y_train=Y)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**55,)})
    (folder / "X_train.npy").write_bytes(header.getvalue() + bytes(100))
    assert "is damaged or truncated" in message_of_file(folder, "X_train.npy")


@pytest.mark.parametrize("damage", ["cut", "text", "entry"])
def test_a_damaged_npz_file(tmp_path, damage):
    path = tmp_path / "d.npz"
    np.savez(path, X_train=X, y_train=Y)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "text":
        path.write_text("no archive")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X_train.npy", b"\x93NUMPY\x01\x00nonsense")
            archive.writestr("y_train.npy", b"")
    assert "is damaged or truncated" in message_of(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00garbage\x00"])
def test_a_damaged_table(tmp_path, suffix, content):
    path = tmp_path / f"d{suffix}"
    path.write_bytes(content)
    message_of(path)


def test_an_unreadable_folder(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert message_of(tmp_path) == f"dataset {tmp_path}: cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        ("a,b\n1,2\n", "there is no column 'label'; the columns are a, b"),
        ("label\n1\n0\n", "there is no column besides 'label'"),
        ("a,name,city,label\n1,x,y,0\n2,z,w,1\n", "columns that hold no numbers: name, city"),
        ("a,label\n1,cat\n2,dog\n", "column 'label' must hold whole numbers from 0, one per class, got 'cat'"),
        ("a,label\n1,0\n,1\n", "X_train is not finite: 1 of 2 values, first at (1, 0): NaN"),
        ("a,label\n1,0\n2,\n", "y_train must hold whole numbers, one class per sample; y_train[1] is nan"),
        ("a,label\n", "the table has no rows"),
    ],
)
def test_wrong_tables(tmp_path, csv, message):
    path = tmp_path / "d.csv"
    path.write_text(csv)
    assert message in message_of(path)


# arrays


@pytest.mark.parametrize(
    ("x", "y", "classes", "message"),
    [
        (X, Y[:9], None, "X_train has 10 samples but y_train has 9 labels"),
        (np.where(X == 7, np.nan, X), Y, None, "X_train is not finite: 1 of 40 values, first at (1, 1, 1): NaN"),
        (np.where(X == 0, np.inf, X), Y, None, "X_train is not finite: 1 of 40 values, first at (0, 0, 0): infinite"),
        (X.astype(np.float64) * 1e39, Y, None, "1e+39, too large for float32"),
        (X[:0], Y[:0], None, "y_train is empty"),
        (X[:, :0], Y, None, "X_train is empty: its shape is (10, 0, 2)"),
        (X[:, 0, 0], Y, None, "X_train must have shape (samples, ...) with at least two dimensions, got (10,)"),
        (X.astype(object), Y, None, "X_train must hold numbers, got dtype object"),
        (X.astype(str), Y, None, "X_train must hold numbers, got dtype <U32"),
        (X + 1j, Y, None, "X_train must hold numbers, got dtype complex64"),
        (X, Y + 0.5, None, "y_train must hold whole numbers, one class per sample; y_train[0] is 0.5"),
        (X, Y - 1, None, "y_train must not be negative; y_train[0] is -1"),
        (X, Y, 1, "y_train must be below the number of classes, 1; y_train[1] is 1"),
        (X, Y.astype(str), None, "y_train must hold whole numbers, one class per sample, got dtype <U21"),
        (X, np.eye(10), None, "y_train must have shape (samples,), got (10, 10); for one-hot rows give y.argmax(1)"),
        (X, Y[:, None], None, "y_train must have shape (samples,), got (10, 1)"),
        (X, np.full(10, 1e30), None, "y_train must be below the number of classes"),
    ],
)
def test_wrong_arrays_are_refused_in_one_line(x, y, classes, message):
    with pytest.raises(DataError) as caught:
        validate_arrays(x, y, classes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_good_arrays_come_back_as_training_uses_them():
    x, y = validate_arrays(X.astype(np.float64), Y.astype(np.float32), 2)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    ids, _ = validate_arrays(np.arange(20, dtype=np.int32).reshape(10, 2), Y)
    assert ids.dtype == np.int32


def test_arrays_are_not_changed():
    x, y = X.astype(np.float64), Y.astype(np.int32)
    before = x.copy(), y.copy()
    training_data(x, y)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])


def test_one_class_alone_is_refused_unless_more_are_said_to_exist():
    with pytest.raises(DataError, match="all labels are 0; a classifier needs at least two classes"):
        training_data(X, np.zeros(10, int))
    assert training_data(X, np.zeros(10, int), classes=2).classes == 2
    with pytest.raises(DataError, match="all labels are 3; a classifier needs at least two classes"):
        training_data(X, np.full(10, 3))


def test_held_out_labels_that_have_nothing_in_common_with_the_others_are_refused():
    with pytest.raises(DataError, match=r"no label of y_val is in y_train: y_val\[0\] is 9, y_train ends at 1"):
        training_data(X, Y, X, np.full(10, 9))


def test_ragged_lists_are_refused_in_one_line():
    with pytest.raises(DataError, match="X_train must be one array of numbers: its rows differ"):
        training_data([[1.0, 2.0], [3.0]], [0, 1])
    with pytest.raises(DataError, match="y_train must be one array"):
        training_data([[1.0], [3.0]], [[0], [1, 2]])


def test_held_out_samples_of_another_shape_are_refused():
    with pytest.raises(DataError, match=r"X_val has samples of shape \(1, 2\), X_train of shape \(2, 2\)"):
        training_data(X, Y, X[:, :1], Y)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0, 0.99), st.integers(0, 5))
def test_a_split_is_a_partition_with_the_share_of_each_class(labels, share, seed):
    y = np.array(labels)
    train, held_out = stratified_split(y, share, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate((train, held_out))), np.arange(len(y)))
    for label in np.unique(y):
        count = int((y == label).sum())
        assert int((y[held_out] == label).sum()) == min(round(share * count), count - 1)


# adaptation


def test_images_in_other_layouts_are_brought_into_the_shape_of_the_model():
    rgb = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    np.testing.assert_array_equal(adapt_images(rgb, (3, 4, 4)), rgb)
    np.testing.assert_array_equal(adapt_images(rgb.transpose(0, 2, 3, 1), (3, 4, 4)), rgb)
    np.testing.assert_array_equal(adapt_images(rgb.reshape(2, 48), (3, 4, 4)), rgb)
    grey = rgb[:, 0]
    np.testing.assert_array_equal(adapt_images(grey, (1, 4, 4)), grey[:, None])
    np.testing.assert_array_equal(adapt_images(grey[..., None], (1, 4, 4)), grey[:, None])
    np.testing.assert_array_equal(adapt_images(rgb, (48,)), rgb.reshape(2, 48))
    np.testing.assert_array_equal(adapt_images(grey, (4, 4)), grey)
    assert adapt_images(rgb.astype(np.float64), (3, 4, 4)).dtype == np.float32


def test_eight_bit_pixels_become_values_from_0_to_1():
    pixels = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    np.testing.assert_allclose(adapt_images(pixels, (1, 2, 2)), [[[[0, 1], [0.2, 0.4]]]], rtol=1e-6)


@pytest.mark.parametrize(
    ("given_shape", "wanted", "message"),
    [
        ((5, 8, 8), (1, 28, 28), "samples have shape (8, 8); the model takes (1, 28, 28), or (28, 28, 1), (784,), (28"),
        ((5, 8, 8), (3, 8, 8), "samples have shape (8, 8); the model takes (3, 8, 8), or (8, 8, 3), (192,)"),
        ((5, 9), (10,), "samples have shape (9,); the model takes (10,)"),
        ((5, 4, 7), (7, 4), "samples have shape (4, 7); the model takes (7, 4)"),
    ],
)
def test_samples_that_fit_no_layout_are_refused_with_the_shape_expected(given_shape, wanted, message):
    with pytest.raises(DataError) as caught:
        adapt_images(np.zeros(given_shape), wanted)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("small_cnn", (8, 8), {"image_size": 8, "image_channels": 1, "classes": 10}),
        ("resnet", (3, 32, 32), {"image_size": 32, "image_channels": 3, "classes": 10}),
        ("resnet", (32, 32, 3), {"image_size": 32, "image_channels": 3, "classes": 10}),
        ("small_cnn", (64,), {"image_size": 8, "image_channels": 1, "classes": 10}),
        ("mlp", (3, 5, 7), {"features": 105, "classes": 10}),
        ("lstm", (8, 12), {"sequence": 8, "features": 12, "classes": 10}),
        ("tcn", (8, 12), {"sequence": 8, "features": 12, "classes": 10}),
    ],
)
def test_sizes_of_a_model_come_from_the_data(name, shape, expected):
    data = synthetic(shape=shape, size=20)
    found = settings_for_data(name, {}, data)
    assert found == expected
    entry = zoo.get(name)
    assert adapt_images(data.x_train, entry.input_shape(found)).shape[1:] == entry.input_shape(found)


def test_sizes_of_token_models_come_from_the_data():
    data = synthetic(tokens=12, vocabulary=500, classes=3, size=300)
    highest = int(max(data.x_train.max(), data.x_val.max()))
    found = settings_for_data("text_embedding", {"embedding": 8}, data)
    assert found == {"embedding": 8, "sequence": 12, "vocabulary": highest + 1, "classes": 3}


def test_a_given_size_must_agree_with_the_data_unless_it_is_the_default():
    data = digits()
    resolved = zoo.get("small_cnn").resolve_settings({"layers": 4})
    assert settings_for_data("small_cnn", resolved, data)["image_size"] == 8
    with pytest.raises(UsageError, match=r"image_size=16 was given, but the samples of digits need image_size=8"):
        settings_for_data("small_cnn", {"image_size": 16}, data)
    with pytest.raises(UsageError, match=r"classes=9 was given, but digits has 10 classes"):
        settings_for_data("small_cnn", {"classes": 9}, data)
    assert settings_for_data("small_cnn", {"classes": 12}, data)["classes"] == 12


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("small_cnn", synthetic(shape=(8, 9), size=20), "takes square images"),
        ("lstm", synthetic(shape=(8,), size=20), r"takes samples of shape \(steps, features\)"),
        ("transformer", synthetic(shape=(8,), size=20), "takes sequences of token ids"),
        ("gpt", synthetic(tokens=8, size=20), "is not trained on one label per sample"),
        ("dlrm", synthetic(shape=(8,), size=20), "takes 2 inputs per sample"),
        ("op_relu", synthetic(shape=(8,), size=20), "is not trained on one label per sample"),
    ],
)
def test_data_that_a_model_cannot_take(name, data, message):
    with pytest.raises(DataError, match=message):
        settings_for_data(name, {}, data)


def test_negative_token_ids_are_refused():
    with pytest.raises(DataError, match="token ids must not be negative, got -1"):
        settings_for_data("transformer", {}, training_data(np.full((10, 8), -1), Y))


# synthetic data


@given(st.integers(2, 6), st.integers(6, 40), st.integers(0, 3))
def test_synthetic_data_is_even_labelled_and_repeatable(classes, size, seed):
    data = synthetic(shape=(3, 4), classes=classes, size=size, seed=seed)
    counts = np.bincount(np.concatenate((data.y_train, data.y_val)), minlength=classes)
    assert counts.sum() == size
    assert counts.max() - counts.min() <= 1
    assert data.source == "synthetic"
    np.testing.assert_array_equal(synthetic(shape=(3, 4), classes=classes, size=size, seed=seed).x_train, data.x_train)


def test_synthetic_classes_can_be_told_apart():
    data = synthetic(shape=(20,), classes=4, size=400)
    centres = np.stack([data.x_train[data.y_train == label].mean(0) for label in range(4)])
    nearest = ((data.x_val[:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == data.y_val).mean() > 0.95
    tokens = synthetic(tokens=40, vocabulary=100, classes=4, size=400)
    assert tokens.x_train.min() >= 0
    assert tokens.x_train.max() < 100
    shares = np.stack([(tokens.x_val // 25 == label).mean(1) for label in range(4)])
    assert (shares.argmax(0) == tokens.y_val).mean() > 0.95


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"shape": (3,), "tokens": 4},
        {"shape": ()},
        {"shape": (0,)},
        {"shape": (3,), "classes": 1},
        {"shape": (3,), "classes": 5, "size": 4},
        {"tokens": 4, "vocabulary": 3},
    ],
)
def test_impossible_synthetic_data_is_refused(arguments):
    with pytest.raises(UsageError, match="synthetic data"):
        synthetic(**arguments)


# batches


@given(st.integers(1, 30), st.integers(1, 35), st.one_of(st.none(), st.integers(0, 9)), st.booleans())
def test_batches_go_through_every_sample_once(count, batch_size, seed, drop_last):
    x, y = np.arange(count), np.arange(count) * 2
    if drop_last and batch_size > count:
        with pytest.raises(UsageError, match="leaves no batch"):
            batches(x, y, batch_size, seed=seed, drop_last=drop_last)
        return
    found = list(batches(x, y, batch_size, seed=seed, drop_last=drop_last))
    assert all(len(part) == batch_size for part, _ in found[:-1])
    seen = np.concatenate([part for part, _ in found])
    assert len(seen) == (count // batch_size * batch_size if drop_last else count)
    assert len(np.unique(seen)) == len(seen)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in found]), seen * 2)
    if seed is None:
        np.testing.assert_array_equal(seen, np.arange(len(seen)))


def test_the_seed_decides_the_order():
    orders = [np.concatenate([x for x, _ in batches(np.arange(50), np.arange(50), 7, seed=s)]) for s in (1, 1, 2)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True])
def test_a_wrong_batch_size_is_refused_before_the_first_batch(batch_size):
    with pytest.raises(UsageError, match="batch_size must be a whole number of at least 1"):
        batches(X, Y, batch_size)


def test_batches_of_arrays_of_different_length_are_refused():
    with pytest.raises(DataError, match="x has 10 samples but y has 9 labels"):
        batches(X, Y[:9], 2)
