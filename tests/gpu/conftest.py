"""Devices that tests run on: each test body runs on the CPU too, so that it cannot rot."""

from __future__ import annotations

import pytest
import torch

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
