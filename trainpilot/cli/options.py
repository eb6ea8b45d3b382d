"""Options that several commands share: the model, its input and the training plan."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from trainpilot.errors import UsageError
from trainpilot.workload.pairs import parse_settings

if TYPE_CHECKING:
    from trainpilot.workload import Workload

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_MODEL_HELP = "Zoo name, path/file.py:build or package.module:build."


@dataclasses.dataclass(frozen=True)
class WorkloadOptions:
    """What a workload is, as command-line options."""

    model_argument: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=_MODEL_HELP)] = None
    model: Annotated[str | None, typer.Option("--model", help=_MODEL_HELP)] = None
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the model; repeatable.")
    ] = None
    input_shape: Annotated[str | None, typer.Option("--input", help="Shape of one float sample, e.g. 3x64x64.")] = None
    token_ids: Annotated[int | None, typer.Option("--token-ids", help="Length of one sequence of token ids.")] = None
    vocab: Annotated[int, typer.Option("--vocab", help="Number of different token ids.")] = 30_000
    classes: Annotated[int | None, typer.Option("--classes", help="Number of classes of the targets.")] = None
    batch_size: Annotated[int, typer.Option("--batch-size", help="Samples per step.")] = 32
    dataset_size: Annotated[int, typer.Option("--dataset-size", help="Number of training samples.")] = 50_000
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the data.")] = 1
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, momentum, adam, adamw, ...")] = "adamw"
    accumulate: Annotated[int, typer.Option("--accumulate", help="Micro-batches per optimizer step.")] = 1
    drop_last: Annotated[bool, typer.Option("--drop-last", help="Leave out the last, partial batch.")] = False
    validation_size: Annotated[int, typer.Option("--validation-size", help="Samples evaluated per epoch.")] = 0
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16 (autocast).")] = "float32"

    def model_name(self) -> str:
        """The model, given as argument or as option.

        Raises:
            UsageError: It is missing or given twice.
        """
        if self.model is not None and self.model_argument is not None:
            raise UsageError("name the model once: as argument or with --model")
        name = self.model if self.model is not None else self.model_argument
        if name is None:
            from trainpilot import zoo

            common = ", ".join(entry for entry in zoo.names() if zoo.get(entry).family != "operator")
            raise UsageError(f"no model given: use --model with path/file.py:build or one of {common}")
        return name

    def settings(self) -> dict[str, Any]:
        """The settings given with ``--set``."""
        return parse_settings(self.setting or [])

    def workload(self) -> Workload:
        """Make the workload.

        Raises:
            UsageError: An option is wrong or does not fit the model.
        """
        from trainpilot import zoo
        from trainpilot.workload import InputSpec, Workload
        from trainpilot.workload.reference import is_code_reference, require_code_file

        name = self.model_name()
        if is_code_reference(name):
            require_code_file(name)
        spec = None
        if self.input_shape is not None and self.token_ids is not None:
            raise UsageError("give --input or --token-ids, not both")
        if self.input_shape is not None:
            spec = InputSpec.parse(self.input_shape)
        elif self.token_ids is not None:
            spec = InputSpec(tokens=self.token_ids, vocabulary=self.vocab)
        if spec is not None and not is_code_reference(name):
            settings = ", ".join(zoo.get(name).settings)
            raise UsageError(f"{name} has its own input: choose its size with --set; settings: {settings}")
        return Workload(
            model=name,
            settings=self.settings(),
            input_spec=spec,
            classes=self.classes,
            batch_size=self.batch_size,
            dataset_size=self.dataset_size,
            epochs=self.epochs,
            optimizer=self.optimizer,
            accumulate=self.accumulate,
            drop_last=self.drop_last,
            validation_size=self.validation_size,
            dtype=self.dtype,
        )


def parse_duration(text: str) -> float:
    """Read ``90``, ``90s``, ``30m`` or ``2h`` as seconds.

    Raises:
        UsageError: The text has another form or is not above 0.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
    try:
        seconds = float(number) * _SECONDS[unit]
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"time {text!r}: write a number above 0 with s, m or h, e.g. 90s")
    return seconds


def with_workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command whose first parameter is a ``WorkloadOptions`` one option per field of it.

    typer reads a command's options off its signature; this one has the fields of ``WorkloadOptions`` in the place
    of the first parameter.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    hints = get_type_hints(WorkloadOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(WorkloadOptions)
    ]
    names = {parameter.name for parameter in shared}

    def run(**arguments: Any) -> Any:
        options = WorkloadOptions(**{name: arguments.pop(name) for name in names})
        return command(options, **arguments)

    parameters = [*shared, *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own)]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
