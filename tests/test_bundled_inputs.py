"""Inputs that ``torch.utils.bundled_inputs`` puts into a module come through optimisation, files and loaders."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.jit.mobile import _load_for_lite_interpreter
from torch.utils import bundled_inputs
from torch.utils.bundled_inputs import InflatableArg, bundle_large_tensor, bundle_randn

import mobopt
from mobopt import MobileModule, generate_mobile_module_lints, optimize_for_mobile
from mobopt.bundle import read_bundle
from mobopt.ir import Program
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.agreement import compare

VARIANTS: dict[str, dict[str, Any]] = {
    "vulkan": {"backend": "vulkan"},
    "metal": {"backend": "metal"},
    "cpu": {"backend": "cpu"},
    "xnnpack": {"backend": "cpu", "xnnpack": True},
}
each_variant = pytest.mark.parametrize("variant", list(VARIANTS))

GLOBAL = {"get_bundled_inputs_functions_and_info"}
OF_FORWARD = {"get_all_bundled_inputs", "get_num_bundled_inputs", "get_all_bundled_inputs_for_forward"}


def make_net() -> Any:
    """Two functions with inputs of several types; of a class of its own, for torch puts methods into the class."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 4, 3, bias=False)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.conv(x)))

        @torch.jit.export
        def scaled(self, x: torch.Tensor, factors: list[int], name: str, scale: float = 2.0) -> dict[str, torch.Tensor]:
            return {name: self.conv(x) * scale * factors[0]}

    return Net().eval()


def scripted() -> torch.jit.ScriptModule:
    return torch.jit.script(make_net())


LARGE = torch.rand(1, 3, 9, 7, generator=torch.Generator().manual_seed(3))
SMALL = torch.rand(1, 3, 5, 1).expand(1, 3, 5, 5)
FORWARD: list[tuple[Any, ...]] = [
    (torch.zeros(1, 3, 8, 8),),
    (torch.full((1, 3, 8, 8), 0.25).contiguous(memory_format=torch.channels_last),),
    (SMALL,),
    (bundle_large_tensor(LARGE),),
]
"""Written as one element, as one in another memory format, as it is, and whole."""
INFLATED = """
def {}(self, value: Tensor):
    return value.reshape(1, 3, 1, 1).expand(1, 3, 5, 6).contiguous()
"""
SCALED: list[tuple[Any, ...]] = [
    (torch.ones(1, 3, 4, 4), [3, 4], "first", 0.5),
    (InflatableArg(torch.tensor([1.0, 2.0, 3.0]), fmt_fn=INFLATED), [2], "second", 1.0),
]
INFO = ["zeros", "quarters", 'with "quotes"', "large"]


def bundle_once(module: torch.jit.ScriptModule, bundle: str) -> torch.jit.ScriptModule:
    """The module, or a copy of it, with inputs, by one of the public functions."""
    if bundle == "bundle_inputs":
        return bundled_inputs.bundle_inputs(module, FORWARD, INFO)
    if bundle == "bundle_inputs of two":
        return bundled_inputs.bundle_inputs(
            module, {module.forward: FORWARD, module.scaled: SCALED}, {module.forward: INFO}
        )
    if bundle == "augment_model":
        bundled_inputs.augment_model_with_bundled_inputs(module, FORWARD, info=INFO)
    elif bundle == "augment_model unchecked":
        bundled_inputs.augment_model_with_bundled_inputs(module, [(LARGE,)], skip_size_check=True)
    else:
        bundled_inputs.augment_many_model_functions_with_bundled_inputs(
            module, {module.forward: FORWARD, module.scaled: SCALED}, info={module.forward: INFO}
        )
    return module


WAYS = ["bundle_inputs", "bundle_inputs of two", "augment_model", "augment_model unchecked", "augment_many"]


def names_of(bundle: str) -> set[str]:
    """Methods that torch's own optimiser keeps."""
    both = (
        {"scaled", "get_all_bundled_inputs_for_scaled"} if bundle in ("bundle_inputs of two", "augment_many") else set()
    )
    return {"forward"} | GLOBAL | OF_FORWARD | both


def roads(module: MobileModule) -> dict[str, Program]:
    """The module's Program, and what is read from each form of file."""
    found = {"program": module.program}
    for name, data in (("pt", module.save_to_buffer()), ("ptl", module._save_to_buffer_for_lite_interpreter())):
        found[name] = read_bundle(io.BytesIO(data))
    return found


def assert_same(found: Any, expected: Any) -> None:
    agreement = compare(found, expected)
    assert agreement.relative <= 1e-5, agreement


@each_variant
@pytest.mark.parametrize("bundle", WAYS)
def test_bundled_before(variant: str, bundle: str) -> None:
    """What torch keeps is kept: the functions with inputs too, and calls on the inputs are right in every form."""
    source = bundle_once(scripted(), bundle)
    module = optimize_for_mobile(source, **VARIANTS[variant])
    for program in roads(module).values():
        assert set(program.methods) == names_of(bundle)
        assert "_bundled_inputs_deflated_forward" in program.attributes
        check_program(program, source)


def check_program(program: Program, source: torch.jit.ScriptModule) -> None:
    """A Program gives the inputs that torch's module gives, and computes the same on them."""
    interpreter, net = Interpreter(program), make_net()
    info = source.get_bundled_inputs_functions_and_info()
    assert interpreter.run("get_bundled_inputs_functions_and_info", []) == info
    assert interpreter.run("get_num_bundled_inputs", []) == source.get_num_bundled_inputs()
    assert_same(interpreter.run("get_all_bundled_inputs", []), source.get_all_bundled_inputs())
    for function, entry in info.items():
        (getter,) = entry["get_inputs_function_name"]
        inputs = interpreter.run(getter, [])
        assert_same(inputs, getattr(source, getter)())
        for arguments in inputs:
            with torch.no_grad():
                assert_same(interpreter.run(function, list(arguments)), getattr(net, function)(*arguments))


@pytest.mark.filterwarnings("ignore:.* operators run on the phone's CPU")  # one method has no example
@each_variant
@pytest.mark.parametrize("bundle", ["augment_model", "augment_model unchecked", "augment_many"])
def test_augmented_after(variant: str, bundle: str) -> None:
    """An optimised module takes inputs as torch's does, and they are in what it saves."""
    module = optimize_for_mobile(scripted(), preserved_methods=["scaled"], **VARIANTS[variant])
    assert bundle_once(module, bundle) is module
    source = bundle_once(scripted(), bundle)
    for program in roads(module).values():
        check_program(program, source)
    assert not any("bundled input" in item["message"] for item in generate_mobile_module_lints(module))


@pytest.mark.parametrize("bundle", WAYS)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_stock_torch_runs_them(bundle: str, before: bool) -> None:
    """Both of torch's loaders find and run the inputs in the CPU's files."""
    if before:
        module = optimize_for_mobile(bundle_once(scripted(), bundle))
    else:
        module = bundle_once(optimize_for_mobile(scripted(), preserved_methods=["scaled"]), bundle)
    source, net = bundle_once(scripted(), bundle), make_net()
    lite = _load_for_lite_interpreter(io.BytesIO(_lite_bytes(module)))  # type: ignore[no-untyped-call]
    full = torch.jit.load(io.BytesIO(_full_bytes(module)))  # type: ignore[no-untyped-call]
    assert lite.run_method("get_num_bundled_inputs") == full.get_num_bundled_inputs() == source.get_num_bundled_inputs()
    for inputs in (lite.run_method("get_all_bundled_inputs"), full.get_all_bundled_inputs()):
        assert_same(inputs, source.get_all_bundled_inputs())
        for arguments in inputs:
            with torch.no_grad():
                assert_same(lite(*arguments), net(*arguments))
                assert_same(full(*arguments), net(*arguments))


def _lite_bytes(module: torch.jit.ScriptModule) -> bytes:
    return bytes(module._save_to_buffer_for_lite_interpreter())


def _full_bytes(module: torch.jit.ScriptModule) -> bytes:
    return bytes(module.save_to_buffer())


def make_generating() -> Any:
    """Its author wrote how inputs are made."""

    class Generating(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

        @torch.jit.export
        def _generate_bundled_inputs_for_forward(self) -> list[tuple[torch.Tensor]]:
            return [(torch.ones(1, 3, 4, 5),), (torch.zeros(1, 3, 6, 7),)]

    return Generating()


@each_variant
def test_inputs_that_the_author_generates(variant: str) -> None:
    source = torch.jit.script(make_generating())
    bundled_inputs.augment_model_with_bundled_inputs(source)
    module = optimize_for_mobile(source, **VARIANTS[variant])
    for program in roads(module).values():
        assert set(program.methods) == {"forward"} | GLOBAL | OF_FORWARD
        assert_same(Interpreter(program).run("get_all_bundled_inputs", []), source.get_all_bundled_inputs())


@each_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_inputs(variant: str, dtype: torch.dtype) -> None:
    """``bundle_randn`` stores a size, and draws anew in every call."""
    source = bundled_inputs.bundle_inputs(scripted(), [(bundle_randn(1, 3, 40, 50, dtype=dtype),)])
    module = optimize_for_mobile(source, **VARIANTS[variant])
    for program in roads(module).values():
        interpreter = Interpreter(program)
        first, second = (interpreter.run("get_all_bundled_inputs", [])[0][0] for _ in range(2))
        assert first.shape == (1, 3, 40, 50) and first.dtype == dtype
        assert not torch.equal(first, second) and 0.8 < float(first.std()) < 1.2
    assert len(module._save_to_buffer_for_lite_interpreter()) < 20_000


@each_variant
def test_large_inputs_are_stored_once(variant: str) -> None:
    large = torch.rand(1, 3, 100, 100)
    plain = optimize_for_mobile(scripted(), **VARIANTS[variant])
    source = bundled_inputs.bundle_inputs(scripted(), [(bundle_large_tensor(large),)])
    module = optimize_for_mobile(source, **VARIANTS[variant])
    for write in (lambda m: m.save_to_buffer(), lambda m: m._save_to_buffer_for_lite_interpreter()):
        assert 0 < len(write(module)) - len(write(plain)) - large.nbytes < 20_000


def test_lints_are_torchs_for_every_way() -> None:
    """Before and after optimisation; the optimised module has lost what the lint looks for, as torch's has."""
    from torch.utils.mobile_optimizer import generate_mobile_module_lints as torchs

    def torchs_today(module: torch.jit.ScriptModule) -> list[dict[str, str]]:
        """Up to 2.13 one message has a full stop too many."""
        return [item | {"message": item["message"].replace("module.and", "module and")} for item in torchs(module)]

    makers: list[Callable[[], torch.jit.ScriptModule]] = [scripted, lambda: torch.jit.script(make_net().train())]
    makers += [lambda way=way: bundle_once(scripted(), way) for way in WAYS]
    makers += [lambda: torch.jit.script(nn.Sequential(nn.Dropout(), nn.Dropout2d(), nn.BatchNorm1d(3)))]
    makers += [lambda: torch.jit.script(nn.Sequential(nn.AlphaDropout(), nn.FeatureAlphaDropout()).eval())]
    makers += [lambda: torch.jit.trace(make_net(), torch.rand(1, 3, 5, 5)), lambda: torch.jit.freeze(scripted())]  # type: ignore[no-untyped-call]
    makers += [lambda: torch.jit.script(nn.LSTM(3, 4, 2, dropout=0.5)), lambda: torch.jit.script(nn.BatchNorm3d(2))]
    for make in makers:
        module = make()
        assert generate_mobile_module_lints(module) == torchs_today(module)
    optimised = optimize_for_mobile(bundle_once(scripted(), "bundle_inputs"))
    assert [item["name"] for item in generate_mobile_module_lints(optimised)] == ["BUNDLED_INPUT"]
    assert generate_mobile_module_lints(optimised) == torchs(optimised)


def test_torch_refuses_to_bundle_twice() -> None:
    module = optimize_for_mobile(bundle_once(scripted(), "bundle_inputs"), backend="vulkan")
    with pytest.raises(Exception, match="can only be augmented with bundled inputs once"):
        bundled_inputs.augment_model_with_bundled_inputs(module, FORWARD)


@pytest.mark.parametrize("save", ["save", "save_to_buffer", "lite", "lite buffer"])
@pytest.mark.parametrize("variant", ["vulkan", "cpu"])
def test_extra_files_in_each_form(variant: str, save: str, tmp_path: Any) -> None:
    """Written by the four ways of saving; read back by torch and by us."""
    module, files = optimize_for_mobile(scripted(), **VARIANTS[variant]), {"labels.txt": "cat\nChâteau", "empty": ""}
    path = tmp_path / "model.ptl"
    if save == "save":
        module.save(str(path), _extra_files=files)
    elif save == "save_to_buffer":
        path.write_bytes(module.save_to_buffer(_extra_files=files))
    elif save == "lite":
        module._save_for_lite_interpreter(str(path), _extra_files=files)
    else:
        path.write_bytes(module._save_to_buffer_for_lite_interpreter(_extra_files=files))
    expected = {name: text.encode() for name, text in files.items()}
    assert read_bundle(path).metadata["extra_files"] == expected
    assert mobopt.load(path, device="cpu").program.metadata["extra_files"] == expected
    if variant == "cpu":
        wanted: dict[str, Any] = dict.fromkeys(files, "")
        torch.jit.load(str(path), _extra_files=wanted)  # type: ignore[no-untyped-call]
        assert {name: text if isinstance(text, bytes) else text.encode() for name, text in wanted.items()} == expected
    else:
        reader = torch._C.PyTorchFileReader(str(path))
        assert {name: reader.get_record(f"extra/{name}") for name in files} == expected


class Tied(nn.Module):
    """A weight that two layers share, a slice of it, it turned, and one number repeated."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, 16)
        self.last = nn.Linear(16, size, bias=False)
        self.last.weight = self.table.weight
        self.register_buffer("first_half", self.table.weight.detach()[: size // 2])
        self.register_buffer("turned", self.table.weight.detach().t())
        self.register_buffer("same", torch.full((1,), 0.5).expand(size, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(x)) + self.first_half[x].sum() + self.turned[:, x].sum() + self.same[x].sum()

    @torch.jit.export
    def erase(self) -> int:
        self.table.weight.zero_()
        return self.table.weight.numel()


def test_shared_storages_are_written_once() -> None:
    """Tied weights, views of them and repeated elements; and training the module further changes no optimised one."""
    size = 4096
    net = Tied(size).eval()
    module = optimize_for_mobile(torch.jit.script(net))
    x = torch.tensor([1, 5, 7])
    with torch.no_grad():
        expected = net(x)
        net.table.weight.mul_(3)
    for data in (module.save_to_buffer(), module._save_to_buffer_for_lite_interpreter()):
        assert len(data) < 1.1 * size * 16 * 4
        assert_same(Interpreter(read_bundle(io.BytesIO(data))).run("forward", [x]), expected)
        assert_same(torch.jit.load(io.BytesIO(data))(x), expected)  # type: ignore[no-untyped-call]


def test_an_attribute_that_is_changed_shares_with_no_constant() -> None:
    module = optimize_for_mobile(torch.jit.script(Tied(64).eval()), preserved_methods=["erase"])
    assert module.program.attributes["table.weight"].value.data_ptr() not in {
        value.constant.data_ptr()
        for graph in module.program.methods.values()
        for node in graph.walk()
        for value in node.inputs
        if value.is_constant and isinstance(value.constant, torch.Tensor)
    }
