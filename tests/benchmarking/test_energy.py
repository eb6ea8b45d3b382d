import sys
import types

import pytest

from trainpilot.benchmarking import NoMeter, ReplayMeter, ZeusMeter
from trainpilot.errors import MeasurementError


def test_without_a_meter_the_energy_is_unknown():
    meter = NoMeter()
    meter.begin()
    assert meter.end() is None


def test_a_recording_is_played_and_ends():
    meter = ReplayMeter([1.5, None])
    meter.begin()
    assert meter.end() == 1.5
    assert meter.end() is None
    with pytest.raises(MeasurementError, match="no more windows"):
        meter.end()


def test_zeus_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus.monitor", None)
    with pytest.raises(MeasurementError, match=r"pip install 'train-pilot\[energy\]'"):
        ZeusMeter()


class Monitor:
    """Zeus's monitor with given counters."""

    gpu_indices = (0,)
    cpu_indices = ()
    found = types.SimpleNamespace(gpu_energy={0: 3.0}, cpu_energy={0: 1.0}, dram_energy=None)

    def __init__(self):
        self.calls = []

    def begin_window(self, key, sync_execution=True):
        self.calls.append("begin")

    def end_window(self, key, sync_execution=True, cancel=False):
        self.calls.append("cancel" if cancel else "end")
        return self.found


def zeus(monkeypatch, monitor):
    monkeypatch.setitem(sys.modules, "zeus", types.ModuleType("zeus"))
    module = types.ModuleType("zeus.monitor")
    module.ZeusMonitor = monitor
    monkeypatch.setitem(sys.modules, "zeus.monitor", module)
    return ZeusMeter()


def test_zeus_adds_all_devices(monkeypatch):
    meter = zeus(monkeypatch, Monitor)
    meter.begin()
    assert meter.end() == 4.0


def test_a_window_that_was_left_open_is_dropped(monkeypatch):
    meter = zeus(monkeypatch, Monitor)
    meter.begin()
    meter.begin()
    assert meter._monitor.calls == ["begin", "cancel", "begin"]


def test_counters_that_did_not_move_are_unknown_and_not_zero(monkeypatch):
    class Still(Monitor):
        found = types.SimpleNamespace(gpu_energy={0: 0.0}, cpu_energy=None, dram_energy=None)

    meter = zeus(monkeypatch, Still)
    meter.begin()
    assert meter.end() is None


def test_zeus_without_any_device_is_refused(monkeypatch):
    class Nothing(Monitor):
        gpu_indices = ()

    with pytest.raises(MeasurementError, match="no device"):
        zeus(monkeypatch, Nothing)
