"""Tensors are told apart by the bytes of their elements, in whatever memory these lie."""

import torch

from mobopt.ir.literals import bytes_of, digest_of


def test_bytes_are_of_elements_in_order() -> None:
    x = torch.randn(3, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    for y in (x.t().contiguous().t(), x.conj().conj_physical(), torch.cat([x, x])[3:]):
        assert bytes_of(y) == bytes_of(x) == x.numpy().tobytes()
    assert bytes_of(x.t()) != bytes_of(x)
    assert bytes_of(torch.zeros(0, 3)) == b""


def test_an_element_of_any_stride() -> None:
    one = torch.tensor(7).expand(1)
    assert one.stride() == (0,)
    assert digest_of(one) == digest_of(torch.tensor([7])) != digest_of(torch.tensor([8]))
