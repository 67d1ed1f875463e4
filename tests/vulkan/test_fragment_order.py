"""Whether fragments that invocations fill from registers are in the order that kernels expect: asked of the device."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from device_infos import known_device

from mobopt.errors import DeviceLostError
from mobopt.runtimes.vulkan.engine import devices, fragment_order
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file, read_kept
from mobopt.runtimes.vulkan.engine.fragment_order import (
    ORDERED_FRAGMENTS,
    are_right,
    example_matrices,
    has_ordered_fragments,
    multiplied,
)
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.matrix_kernels import EMULATED_UNITS, knows_fragments

EMULATED = "emulated"


@pytest.fixture
def with_units(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Device:
    """The device with an empty cache, as one with units, which are emulated."""
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fragment_order, "_kinds", lambda info: [EMULATED])
    return device


def test_the_shader_multiplies_by_every_way_in_the_order_that_kernels_expect(device):
    matrices = example_matrices()
    assert matrices.abs().max() == 2
    assert are_right(matrices, multiplied(device, EMULATED, matrices))


def test_units_of_the_device(device):
    """What is found when it is opened is what the shaders for its units give."""
    if "matrix_units" not in device.info.features:
        pytest.skip("the device has no matrix units of 16 x 16 x 16")
    matrices = example_matrices()
    is_right = are_right(matrices, multiplied(device, "half", matrices))
    assert is_right == (ORDERED_FRAGMENTS in device.info.features)
    if "H200" in device.info.name:
        assert is_right


@pytest.mark.parametrize("product", range(4))
def test_each_product_counts(device, product):
    matrices = example_matrices()
    products = multiplied(device, EMULATED, matrices)
    products[1, product] = products[1, product].roll(8, 1)
    assert not are_right(matrices, products)


def test_the_answer_is_kept(with_units, monkeypatch):
    assert has_ordered_fragments(with_units)
    monkeypatch.setattr(fragment_order, "multiplied", None)
    assert has_ordered_fragments(with_units)


def test_another_order_is_found_and_kept(with_units, monkeypatch):
    def other_order(device: Device, kind: str, matrices: torch.Tensor) -> torch.Tensor:
        return multiplied(device, kind, matrices).roll(1, -1)

    monkeypatch.setattr(fragment_order, "multiplied", other_order)
    assert not has_ordered_fragments(with_units)
    assert read_kept(device_file("fragments", with_units.info, ".json")) == {"is_ordered": False}


def test_a_device_that_fails_counts_as_one_with_another_order(with_units, monkeypatch, caplog):
    def failing(device: Device, kind: str, matrices: torch.Tensor) -> torch.Tensor:
        raise DeviceLostError("the driver gave up")

    monkeypatch.setattr(fragment_order, "multiplied", failing)
    with caplog.at_level(logging.WARNING):
        assert not has_ordered_fragments(with_units)
    path = device_file("fragments", with_units.info, ".json")
    assert "the driver gave up" in caplog.text and f"delete {path} to try again" in caplog.text


def test_a_device_without_units_is_not_asked(device, monkeypatch, tmp_path):
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path))
    info = replace(device.info, features=device.info.features - {"matrix_units", "bfloat16_units"})
    monkeypatch.setattr(device, "info", info)
    assert not has_ordered_fragments(device)
    assert not list(tmp_path.iterdir())


def test_an_opened_device_says_it(device, monkeypatch):
    monkeypatch.setattr(devices, "_devices", {})
    monkeypatch.setattr(devices, "has_ordered_fragments", lambda opened: True)
    opened = devices.open_device(device.info.name, validation=device.is_watched)
    try:
        assert opened.info.features == device.info.features | {ORDERED_FRAGMENTS}
    finally:
        opened.close()


def test_kernels_ask_for_the_feature_whatever_the_name():
    h200 = known_device("nvidia_h200")
    other = replace(h200, name="NVIDIA GeForce RTX 4070")
    assert knows_fragments(other, device_costs(other))
    unordered = replace(h200, features=h200.features - {ORDERED_FRAGMENTS})
    assert not knows_fragments(unordered, device_costs(unordered))
    emulated = replace(unordered, switches=frozenset({EMULATED_UNITS}))
    assert knows_fragments(emulated, device_costs(emulated))
