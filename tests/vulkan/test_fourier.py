"""Fourier transforms of all kinds and lengths, beside torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from real_parts import check
from torch import Tensor
from torch.fft import fft, fft2, fftn, hfft, ifft, ifftn, ifftshift, ihfft, irfft, irfft2, irfftn, rfft, rfft2, rfftn

from mobopt.runtimes.vulkan.decompositions import fourier
from mobopt.runtimes.vulkan.engine.device import Device


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.sweep)])
def computer(request: pytest.FixtureRequest) -> Any:
    """What computes the parts: torch's kernels (None), or a device."""
    return None if request.param == "host" else request.getfixturevalue("device")


def _numbers(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.complex64)


LENGTHS = [1, 2, 3, 13, 16, 400, 1009, 4096]
"""Products, two factors, and large primes that still have a matrix."""


@pytest.mark.parametrize(
    "length", [*LENGTHS, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2053, 48000, 65536))]
)
def test_lengths(computer: Any, length: int) -> None:
    check(computer, lambda z: (fft(z), ifft(z)), _numbers(3, length))
    check(computer, rfft, torch.randn(3, length))
    check(computer, lambda z: irfft(z, n=length), _numbers(3, length // 2 + 1))


def test_large_primes_go_by_chirps(computer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small matrices, so that a small prime is a large one."""
    monkeypatch.setattr(fourier, "_LARGEST_MATRIX", 2**12)
    monkeypatch.setattr(fourier, "SMALL_MATRIX", 2**8)
    check(computer, lambda z: (fft(z), ifft(z, norm="ortho")), _numbers(3, 211))
    check(computer, rfft, torch.randn(3, 211))
    check(computer, lambda z: irfft(z, n=211), _numbers(3, 106))
    check(computer, lambda z: irfft(z, n=210), _numbers(3, 106))


@pytest.mark.sweep
def test_a_very_large_prime(device: Device) -> None:
    check(device, fft, _numbers(2, 10007))


X, Z = torch.randn(3, 13, 7), _numbers(3, 13, 7)
FAMILY: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "norms": (lambda z: tuple(kind(z, norm=n) for n in ("forward", "backward", "ortho") for kind in (fft, ifft)), Z),
    "norms of real numbers": (lambda x: tuple(rfft(x, norm=n) for n in ("forward", "ortho")), X),
    "norms to real numbers": (lambda z: tuple(irfft(z, norm=n) for n in ("forward", "ortho")), Z),
    "lengths": (lambda x: (fft(x, n=5), rfft(x, n=19, dim=1), ifft(x, n=3, dim=0), irfft(x, n=9)), X),
    "two dimensions": (lambda x: (fft2(x), rfft2(x), irfft2(rfft2(x), s=(13, 7)), fft2(x, s=(5, 9), dim=(0, 1))), X),
    "all dimensions": (lambda z: (fftn(z), ifftn(z, norm="ortho"), irfftn(z, dim=(1, 0))), Z),
    "all dimensions of real numbers": (lambda x: (fftn(x), rfftn(x), rfftn(x, dim=(2, 0))), X),
    "hermitian": (lambda z: (hfft(z), hfft(z, n=11, norm="ortho"), ihfft(z.real)), Z),
    "shifts": (lambda z: (torch.fft.fftshift(z), ifftshift(z, dim=1)), Z),
    "frequencies": (lambda x: rfft(x).abs() * torch.fft.rfftfreq(x.shape[-1]), X),
    "real parts alone": (lambda x: fftn(x.to(torch.complex64), dim=(-1, -2)).real, X),
}


@pytest.mark.parametrize("name", FAMILY)
def test_family(computer: Any, name: str) -> None:
    function, x = FAMILY[name]
    check(computer, function, x)


def test_on_a_device(device: Device) -> None:
    check(device, lambda x: irfft(rfft(x) * 2, n=400), torch.randn(3, 400))


# Spectrograms.

FRAMES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "whisper": (400, 160, 400, {}),
    "padded window": (101, 25, 77, {"pad_mode": "constant"}),
    "not centred": (64, 16, 64, {"center": False, "normalized": True}),
    "both sides": (17, 5, 17, {"onesided": False}),
    "long": (1200, 300, 1200, {"pad_mode": "replicate"}),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("sizes", [(3001,), (2, 2003)])
def test_spectrograms(computer: Any, name: str, sizes: tuple[int, ...]) -> None:
    length, hop, width, options = FRAMES[name]
    window = torch.hann_window(width)
    check(
        computer,
        lambda x: torch.stft(x, length, hop, width, window, return_complex=True, **options),
        torch.randn(sizes),
    )


@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
@pytest.mark.parametrize("options", [{}, {"length": 2500}, {"length": 3100, "normalized": True}, {"onesided": True}])
@pytest.mark.parametrize(("length", "hop"), [(400, 160), (64, 16), (1200, 300)])
def test_signals_from_spectrograms(computer: Any, length: int, hop: int, options: dict[str, Any]) -> None:
    window = torch.hann_window(length)
    check(computer, lambda z: torch.istft(z, length, hop, window=window, **options), _numbers(2, length // 2 + 1, 19))


def test_complex_signals(computer: Any) -> None:
    window = torch.hamming_window(32)

    def there_and_back(z: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.stft(z, 32, 8, window=window, onesided=False, return_complex=True)
        signal = torch.istft(spectrum, 32, 8, window=window, onesided=False, return_complex=True, length=499)
        return torch.view_as_real(spectrum), signal

    check(computer, there_and_back, _numbers(2, 499))


def test_computed_windows(computer: Any) -> None:
    check(
        computer,
        lambda x, w: torch.stft(x, 32, 8, window=w.softmax(0), return_complex=True),
        torch.randn(3, 211),
        torch.randn(32),
    )
