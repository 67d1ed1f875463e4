from __future__ import annotations

import pytest
import torch
from engine_shaders import chain, engine_shaders, engine_spirv  # noqa: F401

from mobopt.runtimes.vulkan.executable import Executable


@pytest.mark.parametrize("texel", [False, True])
def test_chain(any_device, texel):
    executable = Executable(any_device, chain(5, 3, 40, texel=texel))
    x = torch.randn(3, 40)
    for _ in range(3):
        (y,) = executable.run([x])
        torch.testing.assert_close(y, x + 5)
    outputs, times = executable.profile([x])
    torch.testing.assert_close(outputs[0], x + 5)
    assert [time.label for time in times] == ["scale 120"] * 5
    executable.close()
