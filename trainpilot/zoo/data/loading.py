"""Reading training data from files; nothing that is read is ever executed."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainpilot.errors import DataError
from trainpilot.zoo.data.training_data import TrainingData, training_data

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
LABEL_COLUMN = "label"
_NAMES = ("X_train", "y_train", "X_val", "y_val")
_REQUIRED = _NAMES[:2]
_FORMATS = "a folder with X_train.npy and y_train.npy, an .npz file with these names, or a .csv or .parquet file"


def load_dataset(path: str | Path) -> TrainingData:
    """Read training data.

    Accepted are a folder with ``X_train.npy`` and ``y_train.npy`` and optionally ``X_val.npy`` and ``y_val.npy``; one
    ``.npz`` file with arrays of these names; a ``.csv`` or ``.parquet`` table whose column ``label`` holds the classes
    and whose other columns are the features. Without held-out data, a fifth of each class is held out.

    Args:
        path: The folder or file.

    Raises:
        DataError: It is missing, incomplete, unreadable, or its content cannot be used.
    """
    path = Path(path)
    try:
        if path.is_dir():
            arrays: Mapping[str, Array] = _read_folder(path)
        elif path.suffix == ".npz" and path.is_file():
            arrays = _read_npz(path)
        elif path.suffix in (".csv", ".parquet") and path.is_file():
            arrays = _read_table(path)
        elif path.exists():
            raise DataError(f"dataset {path}: not a format that can be read; give {_FORMATS}")
        else:
            raise DataError(
                f"dataset {path}: there is no such folder or file; 'trainpilot sample digits {path}' makes one"
            )
    except OSError as error:
        raise DataError(f"dataset {path}: cannot be read: {error.strerror or error}") from error
    try:
        return training_data(
            arrays["X_train"], arrays["y_train"], arrays.get("X_val"), arrays.get("y_val"), name=path.stem or str(path)
        )
    except DataError as error:
        raise DataError(f"dataset {path}: {error}") from None


def _read_folder(folder: Path) -> dict[str, Array]:
    found = {entry.name for entry in folder.iterdir()}
    if not found:
        raise DataError(f"dataset {folder}: the folder is empty; 'trainpilot sample digits {folder}' fills it")
    missing = [f"{name}.npy" for name in _REQUIRED if f"{name}.npy" not in found]
    if missing:
        raise DataError(
            f"dataset {folder}: {' and '.join(missing)} missing; a folder holds X_train.npy and y_train.npy"
        )
    return {name: _read_npy(folder / f"{name}.npy") for name in _NAMES if f"{name}.npy" in found}


def _read_npy(path: Path) -> Array:
    try:
        # Only the .npy format itself is read: np.load would also open a zip or try a pickle.
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        raise DataError(f"dataset {path}: {_explain(error)}") from error


def _read_npz(path: Path) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):
        raise DataError(f"dataset {path}: is damaged or truncated (no .npz archive)")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in _REQUIRED if name not in archive]
            if missing:
                held = ", ".join(archive) or "nothing"
                raise DataError(f"dataset {path}: {' and '.join(missing)} missing; the file holds {held}")
            return {name: archive[name] for name in _NAMES if name in archive}
    except DataError:
        raise
    except (ValueError, EOFError, MemoryError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(f"dataset {path}: {_explain(error)}") from error


def _explain(error: BaseException) -> str:
    if "Object arrays" in str(error) or "pickle" in str(error):
        return "holds Python objects, which are never loaded; save the array with a number dtype"
    return f"is damaged or truncated ({' '.join(str(error).split()) or type(error).__name__})"


def _read_table(path: Path) -> dict[str, Array]:
    import pandas as pd

    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except OSError:
        raise
    except Exception as error:  # pandas and pyarrow have no common class for what a broken file raises
        raise DataError(f"dataset {path}: {_explain(error)}") from error
    columns = [str(column) for column in frame.columns]
    if LABEL_COLUMN not in columns:
        raise DataError(f"dataset {path}: there is no column {LABEL_COLUMN!r}; the columns are {', '.join(columns)}")
    if columns.count(LABEL_COLUMN) > 1:
        raise DataError(f"dataset {path}: there are several columns {LABEL_COLUMN!r}")
    if frame.empty:
        raise DataError(f"dataset {path}: the table has no rows")
    features = frame.drop(columns=LABEL_COLUMN)
    if features.shape[1] == 0:
        raise DataError(f"dataset {path}: there is no column besides {LABEL_COLUMN!r}")
    wrong = _not_numeric(features)
    if wrong:
        raise DataError(f"dataset {path}: columns that hold no numbers: {', '.join(wrong)}")
    label = frame[LABEL_COLUMN]
    if not pd.api.types.is_numeric_dtype(label):
        raise DataError(
            f"dataset {path}: column {LABEL_COLUMN!r} must hold whole numbers from 0, one per class, "
            f"got {label.iloc[0]!r}"
        )
    return {
        "X_train": features.to_numpy(dtype=np.float64, na_value=np.nan),
        "y_train": label.to_numpy(dtype=np.float64, na_value=np.nan),
    }


def _not_numeric(features: pd.DataFrame) -> list[str]:
    import pandas as pd

    return [
        str(column)
        for column, kind in zip(features.columns, features.dtypes, strict=True)
        if not pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_complex_dtype(kind)
    ]
