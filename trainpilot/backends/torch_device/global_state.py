"""Global state of the process that a session changes and gives back."""

from __future__ import annotations

import random
from typing import Any

SEED = 0


class GlobalState:
    """Thread count and random state of torch, numpy and Python, as they were when this object was made.

    Args:
        device_type: The device whose random state belongs to it besides the CPU's.
    """

    def __init__(self, device_type: str) -> None:
        import numpy as np
        import torch

        self._device_type = device_type
        self._threads = torch.get_num_threads()
        self._torch = torch.get_rng_state()
        self._device = None if device_type == "cpu" else getattr(torch, device_type).get_rng_state()
        self._numpy: Any = np.random.get_state()
        self._python = random.getstate()

    def seed(self) -> None:
        """Make what follows reproducible."""
        import numpy as np
        import torch

        # Not torch.manual_seed: that seeds every device, also those whose state is not kept here.
        torch.default_generator.manual_seed(SEED)
        if self._device is not None:
            getattr(torch, self._device_type).manual_seed(SEED)
        np.random.seed(SEED)
        random.seed(SEED)

    def restore(self) -> None:
        """Put everything back."""
        import numpy as np
        import torch

        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._torch)
        if self._device is not None:
            getattr(torch, self._device_type).set_rng_state(self._device)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
