"""``trainpilot sample``: write training data to try the program with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainpilot.cli.console import print_json, print_text
from trainpilot.cli.options import JsonFlag
from trainpilot.errors import UnknownNameError

_SAMPLES = ("digits",)


def sample(
    name: Annotated[str, typer.Argument(help=f"Which data: {', '.join(_SAMPLES)}.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write to; made if it does not exist.")],
    as_json: JsonFlag = False,
) -> None:
    """Write real sample data: X_train.npy, y_train.npy, X_val.npy, y_val.npy."""
    if name not in _SAMPLES:
        raise UnknownNameError("sample", name, _SAMPLES)
    from trainpilot.zoo import data

    written = data.write_digits(folder)
    document = {
        "schema": 1,
        "name": name,
        "folder": str(folder),
        "train_size": len(written.x_train),
        "validation_size": len(written.x_val) if written.x_val is not None else 0,
        "sample_shape": list(written.x_train.shape[1:]),
        "classes": written.classes,
    }
    if as_json:
        print_json(document)
    else:
        shape = "x".join(str(size) for size in written.x_train.shape[1:])
        print_text(
            f"{folder}: {document['train_size']} training and {document['validation_size']} validation samples "
            f"of {shape}, {written.classes} classes (handwritten digits, from scikit-learn)"
        )
