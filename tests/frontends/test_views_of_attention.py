"""Views of what attention gives: ``torch.export`` relies on how PyTorch's kernel for CPUs leaves it in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.ir import print_graph
from mobopt.runtimes.cpu import Interpreter


class Attention(nn.Module):
    """Heads that are put beside each other as transformers' DistilBERT and ModernBERT do it."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.is_causal = is_causal
        self.qkv, self.out = nn.Linear(20, 60), nn.Linear(20, 20)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 7, 5, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        joined = found.transpose(1, 2).contiguous().view(2, 7, 20)
        return self.out(joined)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("backend", "runtime"), [("vulkan", "2.6"), ("vulkan", "1.13"), ("cpu", "1.13")])
def test_views_become_reshapes(backend: str, runtime: str, is_causal: bool) -> None:
    model, x = Attention(is_causal=is_causal).eval(), torch.randn(2, 7, 20, generator=torch.Generator().manual_seed(1))
    exported = torch.export.export(model, (x,))
    assert not any("contiguous" in str(node.target) for node in exported.graph.nodes), "what export leaves out"
    made = optimize_for_mobile(exported, backend=backend, runtime=runtime)
    text = print_graph(made.program.methods["forward"])
    assert "scaled_dot_product_attention" not in text and "aten::reshape" in text
    torch.testing.assert_close(Interpreter(made.program).run("forward", [x]), model(x))


def test_what_lies_right_stays_a_view() -> None:
    model, x = Attention().eval(), torch.randn(2, 7, 20, generator=torch.Generator().manual_seed(1))
    made = optimize_for_mobile(torch.jit.script(model), example_inputs=[x], backend="vulkan", runtime="2.6")
    lines = print_graph(made.program.methods["forward"]).splitlines()
    (copied,) = [line.split()[0] for line in lines if "aten::contiguous(" in line]
    assert any(f"aten::view({copied}," in line for line in lines)
    torch.testing.assert_close(Interpreter(made.program).run("forward", [x]), model(x))


class Masked(Attention):
    """Whose attention files keep, beside a state that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        q, k, v = (part.view(2, 7, 5, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        seen = torch.ones(7, 7, dtype=torch.bool).tril().expand(2, 1, 7, 7)
        mask = torch.zeros(2, 1, 7, 7).masked_fill(~seen, torch.finfo(torch.float32).min)
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(found.transpose(1, 2).contiguous().view(2, 7, 20)) + self.calls


@pytest.mark.parametrize(("backend", "runtime"), [("vulkan", "mobopt"), ("cpu", "2.6")])
def test_views_where_attention_stays(backend: str, runtime: str) -> None:
    """As of BEiT and ModernBERT, whose views PyTorch 2.6 refused."""
    model, x = Masked().eval(), torch.randn(2, 7, 20, generator=torch.Generator().manual_seed(1))
    made = optimize_for_mobile(torch.export.export(model, (x,)), backend=backend, runtime=runtime)
    lines = print_graph(made.program.methods["forward"]).splitlines()
    (result,) = [line.split()[0] for line in lines if "aten::scaled_dot_product_attention(" in line]
    turned = [line.split()[0] for line in lines if f"({result}, " in line]
    assert turned and not any(f"aten::view({name}, " in line for name in turned for line in lines)
    torch.testing.assert_close(made(x), model(x))


class Written(Attention):
    """What attention gives is written to through a view, which must stay one."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 7, 5, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        found = functional.scaled_dot_product_attention(q, k, v).contiguous()
        found.view(2, 5, 28)[:, 1] = 3.0
        return found * 2


def test_views_that_are_written_to() -> None:
    model, x = Written().eval(), torch.randn(2, 7, 20, generator=torch.Generator().manual_seed(1))
    for runtime in ("mobopt", "2.6"):
        made = optimize_for_mobile(torch.export.export(model, (x,)), backend="vulkan", runtime=runtime)
        torch.testing.assert_close(made(x), model(x))
