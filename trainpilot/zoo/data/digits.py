"""Real sample data: scikit-learn's handwritten digits."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from trainpilot.errors import DataError
from trainpilot.files import write_atomically
from trainpilot.zoo.data.training_data import TrainingData, training_data


def digits(validation_share: float = 0.2, seed: int = 0) -> TrainingData:
    """Load 1,797 real handwritten digits in 10 classes.

    The data is part of scikit-learn (UCI "Optical Recognition of Handwritten Digits"): grey images of shape (8, 8)
    with values from 0 to 16, kept as they are.

    Args:
        validation_share: Share of each class that is held out.
        seed: Decides which samples are held out.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return training_data(
        bunch.images.astype(np.float32),
        bunch.target.astype(np.int64),
        classes=10,
        name="digits",
        validation_share=validation_share,
        seed=seed,
    )


def write_digits(folder: str | Path, *, overwrite: bool = False) -> TrainingData:
    """Write the digits as ``X_train.npy``, ``y_train.npy``, ``X_val.npy`` and ``y_val.npy``.

    Each file is complete or absent: it is written under another name and then renamed.

    Args:
        folder: Where to; made if it does not exist.
        overwrite: Replace files of these names that hold something else.

    Raises:
        DataError: A file with other content exists, or the folder cannot be written.
    """
    data = digits()
    folder = Path(folder)
    contents = {
        "X_train.npy": _npy(data.x_train),
        "y_train.npy": _npy(data.y_train),
        "X_val.npy": _npy(data.x_val),
        "y_val.npy": _npy(data.y_val),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        existing = [name for name in contents if (folder / name).exists()]
        different = [name for name in existing if (folder / name).read_bytes() != contents[name]]
        if different and not overwrite:
            raise DataError(
                f"{folder} already holds {', '.join(different)} with other content; "
                "nothing was written: choose another folder or ask to overwrite"
            )
        for name, content in contents.items():
            if name in different or name not in existing:
                write_atomically(folder / name, content)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return data


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
