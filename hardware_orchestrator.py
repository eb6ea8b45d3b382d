"""The documented module of the agent: observe, think, act. The code is in ``trainpilot.hardware_orchestrator``."""

from trainpilot.hardware_orchestrator import HardwareOrchestrator

__all__ = ["HardwareOrchestrator"]
