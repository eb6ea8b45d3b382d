"""Sweeps: which configurations are measured, how often and how long."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainpilot.benchmarking.configuration import Configuration
from trainpilot.benchmarking.sampling import Choice, Derived, Range, space_filling
from trainpilot.benchmarking.sweep_file import MOST_CONFIGURATIONS, Dimension, SpaceTable, SweepTable
from trainpilot.benchmarking.timing import TimingLimits
from trainpilot.errors import UnknownNameError, UsageError
from trainpilot.workload import InputSpec, Workload
from trainpilot.workload.reference import is_code_reference

ALL_THREADS = "all"
_PLAIN_DIMENSIONS = ("batch_size", "optimizer", "threads", "dtype", "memory_format", "phase")
# In a checkout the sweeps lie beside the package; a wheel carries them inside.
_FOLDERS = (Path(__file__).parents[2] / "benchmarks" / "sweeps", Path(__file__).parent / "sweeps")


@dataclass(frozen=True)
class Sweep:
    """A named set of configurations and how they are measured.

    Attributes:
        name: Name of the sweep.
        description: What it is for.
        seed: Decides the sampled points and the order.
        rounds: How often each configuration is measured, far apart in time.
        statistic: Which statistic of a round's windows is the label (see ``timing.label_of``).
        backends: Backends that are measured where the caller names none.
        cap_s: Configurations whose step is estimated to take longer are skipped.
        timeout_s: Time limit of one configuration in one round, everything included.
        repeat_contended: How often a round taken under contention is repeated at the end before it is kept, marked.
        operator_steps: Steps that are timed operator by operator, once per configuration.
        timing: How long one round takes.
        spaces: Models with what varies.
        folder: Where relative paths of the user's own models start.
        digest: Hash of the file, part of the id of the sweep's rows.
    """

    name: str
    description: str
    seed: int
    rounds: int
    statistic: str
    backends: tuple[str, ...]
    cap_s: float
    timeout_s: float
    repeat_contended: int
    operator_steps: int
    timing: TimingLimits
    spaces: tuple[SpaceTable, ...]
    folder: Path
    digest: str

    @property
    def sweep_id(self) -> str:
        """What the rows of this sweep are marked with."""
        return f"{self.name}-{self.digest[:8]}"

    def configurations(self, *, cores: int, backends: Sequence[str] | None = None) -> tuple[Configuration, ...]:
        """All configurations, each once, in the order of the file.

        Args:
            cores: Usable cores, the value of ``threads = "all"``; more threads than that are left out.
            backends: Backends; default: those of the sweep.

        Raises:
            UsageError: A model, setting or value of the sweep does not exist or is wrong.
        """
        found: dict[str, Configuration] = {}
        for number, space in enumerate(self.spaces, 1):
            where = f"sweep {self.name}, space {number} ({space.model})"
            for backend in backends or self.backends:
                for point in self._points(space):
                    try:
                        configuration = self._configuration(space, point, backend, cores)
                    except UsageError as error:
                        raise UsageError(f"{where}: {error}") from None
                    if configuration.threads <= cores:
                        found.setdefault(repr(configuration.to_dict()), configuration)
        return tuple(found.values())

    def order(self, count: int, round_: int) -> list[int]:
        """Shuffled indices of ``count`` configurations for one round."""
        indices = list(range(count))
        random.Random(f"{self.seed}/{round_}").shuffle(indices)
        return indices

    def _points(self, space: SpaceTable) -> list[dict[str, Any]]:
        dimensions: dict[str, Dimension] = {name: getattr(space, name) for name in _PLAIN_DIMENSIONS}
        dimensions |= {f"settings.{name}": dimension for name, dimension in space.settings.items()}
        sampled = {name: d for name, d in sorted(dimensions.items()) if isinstance(d, Range | Choice)}
        derived = {name: d for name, d in dimensions.items() if isinstance(d, Derived)}
        crossed = {name: d for name, d in dimensions.items() if isinstance(d, tuple)}
        number = space.count * math.prod(len(values) for values in crossed.values())
        if number > MOST_CONFIGURATIONS:
            raise UsageError(
                f"sweep {self.name} ({space.model}): {number} configurations are too many, "
                f"at most {MOST_CONFIGURATIONS} are possible"
            )
        # The seed names the model, so that a new space elsewhere in the file leaves these points alone.
        points = space_filling(sampled, space.count, (self.seed, space.model, *sampled))
        found = [
            point | dict(zip(crossed, values, strict=True))
            for point in points
            for values in itertools.product(*crossed.values())
        ]
        for point in found:
            for name, dimension in derived.items():
                if f"settings.{dimension.of}" not in point:
                    raise UsageError(f"{space.model}: {name} follows {dimension.of!r}, which the space does not set")
                point[name] = dimension.at(point[f"settings.{dimension.of}"])
        return found

    def _configuration(self, space: SpaceTable, point: Mapping[str, Any], backend: str, cores: int) -> Configuration:
        settings = {name.removeprefix("settings."): v for name, v in point.items() if name.startswith("settings.")}
        model = _absolute(space.model, self.folder) if is_code_reference(space.model) else space.model
        threads = cores if point["threads"] == ALL_THREADS else point["threads"]
        if isinstance(threads, bool) or not isinstance(threads, int):
            raise UsageError(f'threads must be a whole number or "{ALL_THREADS}", got {threads!r}')
        if point["phase"] not in ("train_step", "forward"):
            raise UsageError(f"phase must be train_step or forward, got {point['phase']!r}")
        workload = Workload(
            model=model,
            settings=settings,
            batch_size=point["batch_size"],
            optimizer=point["optimizer"],
            dtype=point["dtype"],
            input_spec=_input_spec(space),
            classes=space.classes,
        )
        configuration = Configuration(
            workload=workload.to_spec(),
            family=workload.family,
            backend=backend,
            threads=threads,
            memory_format=point["memory_format"],
            phase=point["phase"],
        )
        _ = configuration.settings  # checks them
        return configuration


def load_sweep(name_or_path: str | Path) -> Sweep:
    """Read a sweep that comes with the library, or a file.

    Raises:
        UnknownNameError: Neither a file nor the name of a sweep.
        UsageError: The file is not TOML, or a value is wrong; the text says where.
    """
    text = str(name_or_path)
    path = Path(text)
    if not (path.suffix == ".toml" and path.is_file()):
        known = _named()
        if text not in known:
            if path.suffix == ".toml":
                raise UsageError(f"there is no sweep file {path}")
            raise UnknownNameError("sweep", text, sorted(known))
        path = known[text]
    try:
        content = path.read_bytes()
        table = SweepTable.model_validate(tomllib.loads(content.decode()))
        timing = table.timing.limits()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        unknown = first["type"] == "extra_forbidden"
        problem = "there is no such key" if unknown else first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{path}: {place}: {problem}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return Sweep(
        name=path.stem,
        description=table.description,
        seed=table.seed,
        rounds=table.rounds,
        statistic=table.statistic,
        backends=tuple(table.backends),
        cap_s=table.cap_s,
        timeout_s=table.timeout_s,
        repeat_contended=table.repeat_contended,
        operator_steps=table.operator_steps,
        timing=timing,
        spaces=tuple(table.space),
        folder=path.resolve().parent,
        digest=hashlib.sha256(content).hexdigest(),
    )


def sweep_names() -> tuple[str, ...]:
    """Names of the sweeps that come with the library."""
    return tuple(sorted(_named()))


def parse_shard(text: str) -> tuple[int, int]:
    """Read ``i/n``: part ``i`` (from 1) of ``n``.

    Raises:
        UsageError: The text has another form, or ``i`` is not between 1 and ``n``.
    """
    left, _, right = text.partition("/")
    if left.isdecimal() and right.isdecimal() and 1 <= int(left) <= int(right):
        return int(left), int(right)
    raise UsageError(f"shard {text!r}: write i/n with i from 1 to n, e.g. 2/4")


def _named() -> dict[str, Path]:
    return {path.stem: path for folder in reversed(_FOLDERS) for path in folder.glob("*.toml")}


def _input_spec(space: SpaceTable) -> InputSpec | None:
    if space.input is not None and space.token_ids is not None:
        raise UsageError("give either input or token_ids")
    if space.input is not None:
        return InputSpec.parse(space.input)
    if space.token_ids is not None:
        return InputSpec(tokens=space.token_ids, vocabulary=space.vocab)
    return None


def _absolute(reference: str, folder: Path) -> str:
    """Make the path of ``file.py:build`` absolute: beside the sweep file if it is there, else from where we are."""
    place, _, function = reference.rpartition(":")
    if not place.endswith(".py"):
        return reference
    beside = folder / place
    return f"{beside if beside.is_file() else Path(place).resolve()}:{function}"
