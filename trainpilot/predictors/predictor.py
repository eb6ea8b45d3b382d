"""A fitted predictor of one backend: all targets and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trainpilot.errors import NoDataError
from trainpilot.predictors.targets import STEP_TIME

if TYPE_CHECKING:
    from trainpilot.predictors.model import Forecasts, TargetModel
    from trainpilot.predictors.table import Context, WorkTable


@dataclass(frozen=True)
class Provenance:
    """Where a predictor comes from.

    Attributes:
        created_at: Seconds since the epoch.
        data_hash: Hash of the rows and labels.
        rows: Rows that were used.
        workloads: Distinct workloads among them.
        models: Hashes of the distinct models among them.
        families: Families among them.
        dropped: Rows that were not used, by reason.
        label_noise: Mean relative difference between repetitions, and the number of configurations behind it.
        versions: Library versions by name at the time of the fit.
        held_out: ``{configuration: log of the held-out prediction in s}``: what a challenger is compared with.
        warnings: What a reader of its predictions must know.
        adapted_from: Hash of the data of the reference predictor that was adapted to these rows, or "".
        controls: Usual time of the control workload in s by ``<machine id>/<threads>``: the conditions that predicted
            times are those of.
    """

    created_at: float
    data_hash: str
    rows: int
    workloads: int
    models: tuple[str, ...]
    families: tuple[str, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    label_noise: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    held_out: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    adapted_from: str = ""
    controls: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Predictor:
    """All targets of one backend.

    Attributes:
        backend: The backend.
        targets: ``TargetModel`` by name of the target; the step time is always among them.
        provenance: Where it comes from.
    """

    backend: str
    targets: Mapping[str, TargetModel]
    provenance: Provenance

    @property
    def step(self) -> TargetModel:
        """The model of the step time."""
        return self.targets[STEP_TIME.name]

    @property
    def contexts(self) -> tuple[Context, ...]:
        """Machines and execution settings that it was fitted on."""
        return self.step.domain_.contexts

    @property
    def parts_in_use(self) -> str:
        """Which parts of the step-time model decide, in words."""
        if self.provenance.adapted_from:
            return "the reference predictor, adapted to these rows"
        sums = "additive model" if self.step.operators_ is None else "additive model of learned operator times"
        if self.step.boosted_ is None:
            return f"{sums} alone (too few models for a boosted correction)"
        if self.step.shrinkage_.weight == 0:
            return f"{sums} alone (the boosted correction did not help on unseen models)"
        shrinkage = self.step.shrinkage_
        reach = "" if np.isinf(shrinkage.reach) else f", falling over {shrinkage.reach:g} usual distances"
        return f"{sums} and {shrinkage.weight:.0%} of the boosted correction{reach}"

    def check_known(self, context: Context) -> None:
        """Refuse what was never measured: it is not priced as something else.

        Raises:
            NoDataError: Backend, execution settings, their combination, or machine were never measured.
        """
        hint = _hint(context.backend)
        if context.backend != self.backend:
            raise NoDataError(f"no data for backend {context.backend}: {hint}")
        missing = self.step.domain_.unknown(context)
        if missing:
            raise NoDataError(f"no data for backend {self.backend} with {', '.join(missing)}: {hint}")
        if context.machine_id not in {known.machine_id for known in self.contexts}:
            raise NoDataError(f"no data for backend {self.backend} on this machine: {hint}")
        if context not in self.contexts:
            raise NoDataError(f"no data for backend {self.backend} with {context.setting} together: {hint}")

    def knows_optimizer(self, optimizer: str) -> bool:
        """Whether a workload with this optimizer was measured."""
        return optimizer in self.step.domain_.categories.optimizer

    def forecast(self, table: WorkTable, target: str = STEP_TIME.name) -> Forecasts:
        """Predict one target of n steps.

        Raises:
            NoDataError: A category of a step was never measured, or the target was not learned.
        """
        self._check(table)
        model = self.targets.get(target)
        if model is None:
            raise NoDataError(f"no measured row has {target} on backend {self.backend}")
        return model.forecast(table)

    def forecast_all(self, table: WorkTable) -> dict[str, Forecasts]:
        """Predict all targets of n steps, by name of the target.

        Raises:
            NoDataError: A category of a step was never measured.
        """
        self._check(table)
        step = self.step.forecast(table)
        found = {STEP_TIME.name: step}
        for name, model in self.targets.items():
            if model is not self.step:
                alike = model.domain_ is self.step.domain_ and model.figures_ is self.step.figures_
                found[name] = model.forecast(table, step.position if alike else None)
        return found

    def _check(self, table: WorkTable) -> None:
        for context in table.contexts[0]:
            self.check_known(context)
        for optimizer in sorted(set(table.optimizer)):
            if not self.knows_optimizer(optimizer):
                raise NoDataError(f"no data for optimizer {optimizer}: {_hint(self.backend)}")


def _hint(backend: str) -> str:
    return f"run trainpilot benchmark --backend {backend} and trainpilot fit"


def configuration_key(table: WorkTable, row: int) -> str:
    """Name of what was measured: workload, machine and execution settings."""
    context = table.context[row]
    return "|".join([str(table.workload_hash[row]), *(str(part) for part in context)])
