"""The documented agent: observe, think, act. Plain dicts go in and come out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from trainpilot import predictors, rules, zoo
from trainpilot.backends import backend_names, get_backend
from trainpilot.errors import BackendUnusableError, NoDataError, ObservationError, UnknownNameError, UsageError
from trainpilot.predictors import Estimate, Prediction
from trainpilot.profiling import profile as profile_step
from trainpilot.profiling.result import DOCUMENTED_KEYS
from trainpilot.selection import choose, is_known, predict_under_load, unknown_prediction
from trainpilot.workload import Workload

STATE_KEYS = ("ane_available", "cpu_utilization", "timestamp")
MAX_AGE_S = 60.0
"""An observation that is older says nothing about now (assumed)."""
CLOCK_TOLERANCE_S = 1.0
"""A time stamp may lie this far in the future, for clocks that are set while we look."""
DEFAULT_BATCH_SIZE = 32
ASSUMED_DATASET_SIZE = 50_000
"""Samples where a profile does not tell; the default of ``Workload``."""
FLOPS_PER_PARAMETER = 6
"""Of one sample: a multiply-add is 2 FLOPs, done once forward and twice backward (Kaplan et al. 2020, table 1)."""

_PLAN_KEYS = ("dataset_size", "epochs", "batch_size")

_logger = logging.getLogger("trainpilot")


class Environment(Protocol):
    """What ``act`` needs of a training environment."""

    def execute_training(self, backend: str, workload_profile: Mapping[str, Any]) -> dict[str, Any]:
        """Train on a backend and tell what happened."""


class HardwareOrchestrator:
    """Decides where a workload is trained.

    The rules answer only where no predictor has data for a candidate backend (see ``select_backend``).

    Args:
        clock: Seconds since the epoch; for tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._state: dict[str, Any] | None = None
        self._profile: dict[str, Any] = {}
        self._told: set[str] = set()

    def profile_workload(self, model_config: Mapping[str, Any], dataset_size: int) -> dict[str, Any]:
        """Count what one training step of a model does. The model is really built; nothing is run.

        Args:
            model_config: ``name`` of a zoo model, optionally ``layers``, ``has_conv``, ``has_rnn`` and its settings.
            dataset_size: Number of training samples.

        Returns:
            A dict with ``params``, ``layers``, ``has_conv``, ``has_rnn``, ``depth``, ``avg_layer_size``, everything
            else that a profile holds, and ``workload``, from which the same workload can be made again. The plan is
            one epoch at batch size 32; change ``dataset_size`` or ``epochs`` in the dict for another one.

        Raises:
            UsageError: The configuration names no model, contradicts it, or the size is below 1.
        """
        name, settings = zoo.from_model_config(model_config)
        workload = Workload(name, settings=settings, batch_size=DEFAULT_BATCH_SIZE, dataset_size=dataset_size, epochs=1)
        return {**profile_step(workload).to_dict(), "workload": workload.to_spec()}

    def observe(self, hardware_state: Mapping[str, Any], workload_profile: Mapping[str, Any]) -> None:
        """Keep the state of the hardware and the profile for ``think``.

        Args:
            hardware_state: ``ane_available`` (bool), ``cpu_utilization`` (0 to 1), ``timestamp`` (seconds since the
                epoch, at most 60 s ago).
            workload_profile: What ``profile_workload`` returned, or a dict with the six documented keys.

        Raises:
            ObservationError: A key is missing, of the wrong kind or out of range, or the state is stale.
        """
        self._check_state(hardware_state)
        _check_profile(workload_profile)
        self._state, self._profile = dict(hardware_state), dict(workload_profile)

    def think(self) -> str:
        """Return the backend for the last observation.

        Raises:
            ObservationError: Nothing was observed, or too long ago.
        """
        if self._state is None:
            raise ObservationError(
                "nothing was observed: call observe(hardware_state, workload_profile) before think()"
            )
        return self.select_backend(self._profile, self._state)[0]

    def predict_performance(self, profile: Mapping[str, Any], backend: str) -> float:
        """Return the training time of the profiled plan on a backend, in s.

        NaN where nothing is known, for example for a backend that does not exist on this machine: unknown is not a
        number that looks like one. The reason is then logged once, as is an assumed ``dataset_size``.
        ``explain_performance`` gives the interval, the source and the assumptions.

        Raises:
            UnknownNameError: No backend has that name.
            ObservationError: The profile lacks a documented key.
        """
        prediction = self.explain_performance(profile, backend)
        if prediction.total_time_s is None:
            self._tell_once(f"the training time on {backend} is unknown: {'; '.join(prediction.notes) or 'no data'}")
            return math.nan
        if profile.get("workload") is None and "dataset_size" not in profile:
            self._tell_once(
                f"the profile has no dataset_size, so {ASSUMED_DATASET_SIZE} samples are assumed; "
                "add the key to the profile"
            )
        return prediction.total_time_s.value

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            _logger.warning("%s", message)

    def explain_performance(self, profile: Mapping[str, Any], backend: str) -> Prediction:
        """Predict the profiled plan on a backend, with interval, source and notes.

        A profile that holds only the six documented keys is answered from its number of parameters and the backend's
        measured arithmetic speed: 6 FLOPs per parameter and sample, no overhead, no interval. That is a lower bound
        for models that use their weights more than once per sample, as convolutions do.

        Raises:
            UnknownNameError: No backend has that name.
            ObservationError: The profile lacks a documented key.
        """
        _check_profile(profile)
        device = get_backend(backend)
        workload = _workload_of(profile)
        try:
            if workload is not None:
                return predictors.predict(workload, backend)
            calibration = device.calibration()
        except (BackendUnusableError, NoDataError) as error:
            return unknown_prediction(backend, str(error))
        if calibration is None:
            return unknown_prediction(backend, f"{backend} has no calibration figures: run trainpilot calibrate")
        return _from_parameters(profile, backend, calibration.figures["matmul_flops_per_s"])

    def select_backend(self, profile: Mapping[str, Any], hardware_state: Mapping[str, Any]) -> tuple[str, float]:
        """Return the backend and the confidence in it, 0 to 1.

        Candidates are ``cpu``, and ``ane`` where the state says that it is available. If a predictor has data for both,
        they are compared (see ``trainpilot.selection.choose``), the CPU's time adjusted for ``cpu_utilization``.
        Otherwise the rule cascade answers, which is logged at level INFO. The state is believed: a machine that cannot
        really use the engine refuses in ``act``.

        Raises:
            ObservationError: State or profile are incomplete, out of range or stale.
        """
        self._check_state(hardware_state)
        _check_profile(profile)
        utilization = float(hardware_state["cpu_utilization"])
        available = bool(hardware_state["ane_available"])
        workload = _workload_of(profile)
        # A profile from elsewhere holds no sizes, so there is nothing that a learned prediction could start from.
        if available and workload is not None:
            engine = predict_under_load(workload, get_backend("ane"), utilization)
            if is_known(engine):
                cpu = predict_under_load(workload, get_backend("cpu"), utilization)
                if is_known(cpu):
                    choice = choose({"cpu": cpu, "ane": engine})
                    return choice.backend, choice.confidence
        rule = rules.decide(profile, ane_available=available, cpu_utilization=utilization)
        _logger.info("a rule decides for %s, because %s", rule.backend, rule.reason)
        return rule.backend, rule.confidence

    def act(self, action: str, environment: Environment) -> dict[str, Any]:
        """Train on a backend.

        Args:
            action: A backend, or ``auto`` for the best usable one.
            environment: A ``TrainingEnvironment``.

        Returns:
            A dict with at least ``status``, ``backend``, ``execution_time`` (s) and ``message``.

        Raises:
            UnknownNameError: No backend has that name.
            UsageError: ``environment`` cannot train.
            BackendUnusableError: The backend cannot be used here; another one is never put in its place.
        """
        if not isinstance(action, str):
            raise UnknownNameError("backend", action, ("auto", *backend_names()))
        if not callable(getattr(environment, "execute_training", None)):
            raise UsageError(
                f"environment must have execute_training(backend, workload_profile), as a TrainingEnvironment has, "
                f"got {type(environment).__name__}"
            )
        return environment.execute_training(action, self._profile)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise ObservationError(f"hardware state: must be a dict, got {type(state).__name__}")
        missing = [key for key in STATE_KEYS if key not in state]
        if missing:
            raise ObservationError(f"hardware state: {missing[0]!r} is missing; needed are {', '.join(STATE_KEYS)}")
        if not _is_bool(state["ane_available"]):
            raise ObservationError(
                f"hardware state: ane_available must be true or false, got {state['ane_available']!r}"
            )
        utilization, timestamp = state["cpu_utilization"], state["timestamp"]
        if not _is_number(utilization) or not 0 <= utilization <= 1:
            raise ObservationError(f"hardware state: cpu_utilization must be a share from 0 to 1, got {utilization!r}")
        if not _is_number(timestamp) or not math.isfinite(timestamp):
            raise ObservationError(f"hardware state: timestamp must be seconds since the epoch, got {timestamp!r}")
        age = self._clock() - float(timestamp)
        if age > MAX_AGE_S:
            raise ObservationError(
                f"hardware state: it is {age:.0f} s old, more than {MAX_AGE_S:.0f} s: observe the hardware again"
            )
        if age < -CLOCK_TOLERANCE_S:
            raise ObservationError(f"hardware state: its timestamp lies {-age:.0f} s in the future")


def _check_profile(profile: Mapping[str, Any]) -> None:
    if not isinstance(profile, Mapping):
        raise ObservationError(f"workload profile: must be a dict, got {type(profile).__name__}")
    for key in DOCUMENTED_KEYS:
        if key not in profile:
            raise ObservationError(f"workload profile: {key!r} is missing; needed are {', '.join(DOCUMENTED_KEYS)}")
        value = profile[key]
        if key.startswith("has_"):
            if not _is_bool(value):
                raise ObservationError(f"workload profile: {key} must be true or false, got {value!r}")
        elif not _is_number(value) or not 0 <= value < math.inf:
            raise ObservationError(f"workload profile: {key} must be a number of at least 0, got {value!r}")
    for key in _PLAN_KEYS:
        value = profile.get(key, 1)
        if not _is_number(value) or not isinstance(value, Integral) or value < 1:
            raise ObservationError(f"workload profile: {key} must be a whole number of at least 1, got {value!r}")


def _is_bool(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _workload_of(profile: Mapping[str, Any]) -> Workload | None:
    """The workload that ``profile_workload`` counted, or None for a profile from elsewhere."""
    spec = profile.get("workload")
    if spec is None:
        return None
    if not isinstance(spec, Mapping) or "model" not in spec:
        raise ObservationError(f"workload profile: workload must be what profile_workload gave, got {spec!r}")
    plan = {key: profile[key] for key in _PLAN_KEYS if key in profile}
    return Workload.from_spec({**spec, **plan})


def _from_parameters(profile: Mapping[str, Any], backend: str, flops_per_s: float) -> Prediction:
    samples = profile.get("dataset_size", ASSUMED_DATASET_SIZE)
    epochs, batch_size = profile.get("epochs", 1), profile.get("batch_size", DEFAULT_BATCH_SIZE)
    per_sample_s = FLOPS_PER_PARAMETER * float(profile["params"]) / flops_per_s
    return Prediction(
        backend=backend,
        step_time_s=Estimate(per_sample_s * batch_size),
        setup_time_s=None,
        epoch_time_s=Estimate(per_sample_s * samples),
        total_time_s=Estimate(per_sample_s * samples * epochs),
        peak_memory_bytes=None,
        energy_j=None,
        source="analytic",
        in_range=False,
        notes=(
            f"assumed: {FLOPS_PER_PARAMETER} FLOPs per parameter and sample, at {flops_per_s:.3g} FLOP/s measured on "
            f"matrix products; {samples} samples, {epochs} epoch(s), batch size {batch_size}",
            "the profile tells no more than its number of parameters, so this is a rough lower bound",
        ),
    )
