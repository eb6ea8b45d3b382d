"""What every target of the same steps shares while it is fitted: prices, features, held-out folds and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.predictors.domain import Domain, Position
from trainpilot.predictors.features import Categories, mix, scale_free
from trainpilot.predictors.folds import Fold, family_folds, model_folds, size_folds
from trainpilot.predictors.targets import Figures, price_step_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import Context, WorkTable

_FEW_MODELS, _FEW_FAMILY_FOLDS, _FEW_MODEL_FOLDS = 100, 5, 3
# Held out at each end of the sizes, so that the error of going beyond the data is known even from a small sweep.
_EXTRAPOLATED_SHARE = 1 / 3


@dataclass(frozen=True, eq=False)
class Splits:
    """n steps, and how they are held out.

    Attributes:
        table: The steps.
        figures: Calibration figures by context.
        coarse: A few folds of families and sizes only: enough to choose a correction and intervals, and several times
            as fast where a predictor is fitted again and again to judge it.
    """

    table: WorkTable
    figures: dict[Context, Mapping[str, float]]
    coarse: bool = False

    @classmethod
    def of(cls, table: WorkTable, figures: Figures, *, coarse: bool = False) -> Splits:
        """The splits of a table at the prices of these figures."""
        return cls(table, dict(figures), coarse)

    @cached_property
    def priced(self) -> NDArray[np.float64]:
        """Terms at calibration prices in s, shape (n, terms)."""
        return price_step_s(self.table, self.figures)

    @cached_property
    def mixes(self) -> NDArray[np.float64]:
        """What ``mix`` gives for the steps."""
        return mix(self.table, self.priced)

    @cached_property
    def domain(self) -> Domain:
        """The range of all steps."""
        return Domain.of(self.table, self.mixes)

    @cached_property
    def categories(self) -> Categories:
        """The categories of all steps. A fold that lacks one has a column of zeros, which no tree looks at."""
        return Categories.of(self.table)

    @cached_property
    def features(self) -> NDArray[np.float64]:
        """What ``scale_free`` gives for the steps."""
        return scale_free(self.table, self.priced, self.categories, self.mixes)

    @cached_property
    def folds(self) -> list[Fold]:
        """Families, models, and the smallest and largest models; those with something left to fit on."""
        table = self.table
        # A small sweep is fitted in seconds: its held-out errors are coarse anyway.
        few = len(set(table.model_hash)) < _FEW_MODELS
        families = family_folds(table, _FEW_FAMILY_FOLDS) if few or self.coarse else family_folds(table)
        # Models of one family alone are held out in any case: nothing else could be.
        models = [] if self.coarse and families else model_folds(table, _FEW_MODEL_FOLDS) if few else model_folds(table)
        folds = [
            *families,
            *models,
            *size_folds(table, self.priced.sum(axis=1), share=_EXTRAPOLATED_SHARE, smallest=True),
        ]
        return [fold for fold in folds if len(fold.train)]

    @cached_property
    def positions(self) -> list[Position]:
        """Where the held-out steps of each fold lie relative to those that are left."""
        return [
            Domain.of(self.table.take(fold.train), self.mixes[fold.train]).locate(
                self.table.take(fold.held), self.priced[fold.held], self.mixes[fold.held]
            )
            for fold in self.folds
        ]
