"""The drop-in face: arguments, errors, structures, and what the returned module can do."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import bundled_inputs

import mobopt
from mobopt import MobileOptimizerType, optimize_for_mobile
from mobopt.errors import InputError, MoboptError, UnsupportedError
from mobopt.samples.agreement import compare

BACKENDS = ("cpu", "vulkan", "metal")
TorchOptimizerType: Any = torch._C._MobileOptimizerType


class Net(nn.Module):
    """Everything that a member of the blocklist has to do with."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(5)
        self.dropout = nn.Dropout(0.5)
        self.sequence = nn.Conv1d(5, 5, 3, padding=1)
        self.linear = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn(self.conv(x)))
        y = torch.relu(y + self.dropout(y))
        y = self.sequence(y.flatten(2)).mean(2)
        return self.linear(y)

    @torch.jit.export
    def halved(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x) * 0.5


def make_net() -> Net:
    torch.manual_seed(0)
    net = Net()
    nn.init.uniform_(net.bn.running_mean, -1, 1)  # type: ignore[arg-type]
    nn.init.uniform_(net.bn.running_var, 0.5, 2)  # type: ignore[arg-type]
    return net.eval()


@pytest.fixture(scope="module")
def net() -> Net:
    return make_net()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def optimized(net: Net) -> mobopt.MobileModule:
    inputs = {name: [torch.ones(1, 3, 7, 5)] for name in ("forward", "halved")}
    script = torch.jit.script(net)
    return optimize_for_mobile(script, preserved_methods=["halved"], backend="vulkan", example_inputs=inputs)


def assert_agrees(actual: Any, expected: Any) -> None:
    agreement = compare(actual, expected)
    assert agreement.agrees, agreement


def operators(module: mobopt.MobileModule) -> set[str]:
    return {node.op for graph in module.program.methods.values() for node in graph.walk()}


# Argument checks: torch's order, torch's words.


def test_not_a_script_module(net: Net) -> None:
    with pytest.raises(TypeError) as caught:
        optimize_for_mobile(net, backend="nowhere")  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"Got {Net}, but ScriptModule is expected. Give example_inputs")
    assert isinstance(caught.value, MoboptError)


@pytest.mark.parametrize("model", [None, 3, b"model.pt", {"weight": 1}])
def test_no_model(model: Any) -> None:
    with pytest.raises(mobopt.ArgumentTypeError) as caught:
        optimize_for_mobile(model)
    assert str(caught.value) == f"Got {type(model)}, but ScriptModule is expected."


@pytest.mark.parametrize("kind", ["module", "program", "proto", "m.pt", "m.pt2", "m.onnx"])
def test_every_source_of_models(net: Net, x: torch.Tensor, tmp_path: Path, kind: str) -> None:
    model: Any = net
    if kind == "m.pt":
        torch.jit.save(torch.jit.script(net), tmp_path / kind)
    elif kind != "module":
        program = torch.export.export(net, (x,))
        model = torch.onnx.export(program, dynamo=True, verbose=False).model_proto if kind == "proto" else program
    if kind == "m.pt2":
        torch.export.save(program, tmp_path / kind)
    elif kind == "m.onnx":
        torch.onnx.export(program, (), tmp_path / kind, dynamo=True, verbose=False)
    done = optimize_for_mobile(tmp_path / kind if "." in kind else model, backend="vulkan", example_inputs=[x])
    assert_agrees(done(x), net(x))


def test_missing_preserved_methods_are_named_in_order(net: Net) -> None:
    with pytest.raises(AttributeError) as caught:
        optimize_for_mobile(torch.jit.script(net), preserved_methods=["b", "forward", "a"], backend="nowhere")
    assert str(caught.value) == "The following methods to preserve do not exist in script_module: b, a"


def test_bytes_are_not_method_names(net: Net) -> None:
    with pytest.raises(AttributeError, match=r"do not exist in script_module: b'forward'$"):
        optimize_for_mobile(torch.jit.script(net), preserved_methods=[b"forward"])


@pytest.mark.parametrize("backend", ["opencl", "", "vulkan "])
def test_unknown_backend(net: Net, backend: str) -> None:
    with pytest.raises(TypeError) as caught:
        optimize_for_mobile(torch.jit.script(net), optimization_blocklist=3, backend=backend)  # type: ignore[arg-type]
    assert str(caught.value) == "Unknown backend, must be one of 'CPU', 'Vulkan' or 'Metal'"


def test_backend_none(net: Net) -> None:
    with pytest.raises(AttributeError, match=r"^'NoneType' object has no attribute 'lower'$"):
        optimize_for_mobile(torch.jit.script(net), backend=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("blocklist", [[MobileOptimizerType.REMOVE_DROPOUT], {1}, {None}, 3])
def test_blocklist_of_a_wrong_type(net: Net, blocklist: Any) -> None:
    with pytest.raises(TypeError, match="optimization_blocklist"):
        optimize_for_mobile(torch.jit.script(net), blocklist)


def test_unknown_optimisation(net: Net) -> None:
    with pytest.raises(InputError, match="no optimisation 'REMOVE_DROPOT'; did you mean REMOVE_DROPOUT"):
        optimize_for_mobile(torch.jit.script(net), {"REMOVE_DROPOT"})


def test_unknown_runtime(net: Net) -> None:
    with pytest.raises(UnsupportedError, match=r"runtime is '0\.4'; bundles can be made for 1\.13"):
        optimize_for_mobile(torch.jit.script(net), runtime="0.4")


def test_our_own_runtime_needs_no_rewrites(x: torch.Tensor) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, groups=3), torch.nn.MaxPool2d(3, 2, 1), torch.nn.GELU())
    script = torch.jit.script(model.eval())
    own = optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[x])
    kinds = {"aten::to", "vulkan_prepack::run_conv2d_context", "aten::max_pool2d", "aten::gelu"}
    assert operators(own) - {"prim::GetAttr"} == kinds
    with pytest.raises(InputError, match="runtime mobopt is for the backend vulkan; the backend is metal"):
        optimize_for_mobile(script, backend="metal", runtime="mobopt")


def test_unknown_level_of_legalisation(net: Net) -> None:
    with pytest.raises(InputError, match="legalize is 'most'; choose one of off, safe, full"):
        optimize_for_mobile(torch.jit.script(net), legalize="most")


@pytest.mark.parametrize(("option", "backend"), [("xnnpack", "cpu"), ("copy_to_host", "metal")])
def test_options_of_another_backend(net: Net, option: str, backend: str) -> None:
    with pytest.raises(InputError, match=f"is for the backend {backend}; the backend is vulkan"):
        optimize_for_mobile(torch.jit.script(net), backend="Vulkan", **{option: True})


class _Sum(nn.Module):
    def forward(self, values: list[torch.Tensor]) -> torch.Tensor:
        return torch.softmax(torch.stack(values), 1)


def test_unknown_sizes_are_a_warning(net: Net) -> None:
    script = torch.jit.script(_Sum())
    with pytest.warns(UserWarning, match="depends on their sizes.*Give example_inputs"):
        optimize_for_mobile(script, backend="metal")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        optimize_for_mobile(script, backend="metal", example_inputs=[[torch.rand(3, 4)]])
        optimize_for_mobile(script, backend="vulkan", legalize="off")
        optimize_for_mobile(script, backend="vulkan", runtime="mobopt")
        optimize_for_mobile(script)
        optimize_for_mobile(torch.jit.script(net), backend="vulkan")


class _Counting(nn.Module):
    """Sets an attribute, by which later calls may be of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = torch.relu(x + self.last)
        return self.last


def test_inputs_are_not_asked_for_that_are_there() -> None:
    with pytest.warns(UserWarning, match="2 operators run .* more than those of inputs.*that calls assign") as found:
        optimize_for_mobile(torch.jit.script(_Counting()), backend="vulkan", example_inputs=[torch.rand(1, 3, 5, 5)])
    assert not any("Give example_inputs" in str(item.message) for item in found)


def test_optimised_twice(optimized: mobopt.MobileModule) -> None:
    with pytest.raises(UnsupportedError, match="optimised already"):
        optimize_for_mobile(optimized, backend="vulkan")


# The blocklist.


def test_members_have_torchs_names_and_values() -> None:
    assert {name: int(member) for name, member in TorchOptimizerType.__members__.items()}.items() <= {
        name: int(member) for name, member in MobileOptimizerType.__members__.items()
    }.items()
    assert MobileOptimizerType.CONV_1D_TO_2D == 5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("member", MobileOptimizerType)
def test_each_member_is_honoured(net: Net, x: torch.Tensor, backend: str, member: MobileOptimizerType) -> None:
    script = torch.jit.script(net)
    usual = optimize_for_mobile(script, backend=backend, example_inputs=[x])
    blocked = optimize_for_mobile(script, {member}, backend=backend, example_inputs=[x])
    assert_agrees(blocked(x), net(x))
    present, absent = _EFFECTS[backend, member]
    assert present <= operators(blocked)
    assert absent.isdisjoint(operators(blocked))
    if present or absent:
        assert not present <= operators(usual) or not absent.isdisjoint(operators(usual))


_NOTHING: tuple[set[str], set[str]] = (set(), set())
_EFFECTS: dict[tuple[str, MobileOptimizerType], tuple[set[str], set[str]]] = {
    **{(backend, member): _NOTHING for backend in BACKENDS for member in MobileOptimizerType},
    ("cpu", MobileOptimizerType.CONV_BN_FUSION): ({"aten::batch_norm"}, set()),
    **{(backend, MobileOptimizerType.REMOVE_DROPOUT): ({"aten::dropout"}, set()) for backend in BACKENDS},
    ("cpu", MobileOptimizerType.FUSE_ADD_RELU): (set(), {"aten::_add_relu"}),
    ("cpu", MobileOptimizerType.CONV_1D_TO_2D): ({"aten::conv1d"}, set()),
    ("vulkan", MobileOptimizerType.INSERT_FOLD_PREPACK_OPS): (
        {"aten::conv2d", "aten::linear"},
        {"vulkan_prepack::run_conv2d_context"},
    ),
    ("metal", MobileOptimizerType.INSERT_FOLD_PREPACK_OPS): (
        {"aten::conv2d", "aten::linear"},
        {"metal_prepack::conv2d_run"},
    ),
    ("vulkan", MobileOptimizerType.CONV_1D_TO_2D): ({"aten::conv1d"}, set()),
}


def test_automatic_transfers_can_be_left_out(net: Net) -> None:
    member = MobileOptimizerType.VULKAN_AUTOMATIC_GPU_TRANSFER
    image = torch.randn(1, 3, 7, 5)
    blocked = optimize_for_mobile(torch.jit.script(net), {member}, backend="vulkan", example_inputs=[image])
    assert "aten::to" not in operators(blocked)
    assert not hasattr(blocked, "requires_backend_transfers")


def test_batch_normalisation_by_itself_is_packed_since_2_0(net: Net, x: torch.Tensor) -> None:
    member = MobileOptimizerType.CONV_BN_FUSION
    blocked = optimize_for_mobile(torch.jit.script(net), {member}, backend="vulkan", example_inputs=[x], runtime="2.6")
    assert "vulkan_prepack::run_batchnorm_context" in operators(blocked)


def test_torchs_own_members_and_names_are_accepted(net: Net) -> None:
    script = torch.jit.script(net)
    for item in (TorchOptimizerType.REMOVE_DROPOUT, "remove_dropout"):
        assert "aten::dropout" in operators(optimize_for_mobile(script, {item}, backend="vulkan"))


# The original stays as it is.


def test_training_mode_is_optimised_as_evaluation_and_left_alone(x: torch.Tensor) -> None:
    net = make_net()
    expected = net(x)
    script = torch.jit.script(net.train())
    before = {name: value.clone() for name, value in script.state_dict().items()}
    assert_agrees(optimize_for_mobile(script, backend="vulkan", example_inputs=[x])(x), expected)
    assert script.training and script.bn.training
    for name, value in script.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_traced_and_frozen_modules(net: Net, x: torch.Tensor) -> None:
    layers = nn.Sequential(net.conv, net.bn, nn.ReLU()).eval()
    for module in (torch.jit.trace(layers, x), torch.jit.freeze(torch.jit.script(layers))):
        assert_agrees(optimize_for_mobile(module, backend="vulkan")(x), layers(x))


def test_example_inputs_that_fit(net: Net, x: torch.Tensor) -> None:
    module = optimize_for_mobile(torch.jit.script(net), backend="vulkan", example_inputs=(x,))
    assert_agrees(module(x), net(x))


def test_explain_prints_the_notes(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    module = optimize_for_mobile(torch.jit.script(net), backend="vulkan", explain=True)
    printed = capsys.readouterr().out
    assert module.notes
    assert printed.splitlines() == [str(note) for note in module.notes]


# What the module can do.


@pytest.mark.filterwarnings("ignore:.* operators run on the phone's CPU, because no example input")
@pytest.mark.parametrize("backend", BACKENDS)
def test_call_forward_and_preserved_methods(net: Net, x: torch.Tensor, backend: str) -> None:
    module = optimize_for_mobile(torch.jit.script(net), preserved_methods=["halved"], backend=backend)
    assert_agrees(module(x), net(x))
    assert_agrees(module(x=x), net(x))
    assert_agrees(module.forward(x), net(x))
    assert_agrees(module.halved(x), net.halved(x))
    assert not hasattr(module, "quarter")


def test_calls_with_wrong_arguments(optimized: mobopt.MobileModule, x: torch.Tensor) -> None:
    for args, kwargs, message in (
        ((), {}, r"forward takes 1 inputs \(x\); x missing"),
        ((x, x), {}, r"forward takes 1 inputs \(x\), got 2"),
        ((x,), {"x": x}, "'x' is given twice"),
        ((x,), {"y": x}, "'y' is unknown; its inputs are x"),
        ((x[:, :2],), {}, "conv"),
        (("text",), {}, "text|str"),
    ):
        with pytest.raises(InputError, match=message):
            optimized(*args, **kwargs)


def test_is_a_script_module_for_torch(optimized: mobopt.MobileModule) -> None:
    assert isinstance(optimized, torch.jit.ScriptModule)
    names = torch.jit.export_opnames(optimized)
    assert names == sorted(set(names))
    assert {"vulkan_prepack::run_conv2d_context", "aten::to.prim_Device"} <= set(names)
    assert names == mobopt.export_opnames(optimized)
    assert "vulkan_prepack::run_conv2d_context" in str(optimized.graph)
    assert "run_conv2d_context" in optimized.code
    assert "run_linear_context" in optimized.halved.code
    assert optimized.forward.schema.arguments[1].name == "x"
    assert optimized.eval() is optimized
    assert repr(optimized)


def test_training_mode_is_refused(optimized: mobopt.MobileModule) -> None:
    assert optimized.train(False) is optimized
    with pytest.raises(UnsupportedError, match="can't be trained"):
        optimized.train()


def test_saved_forms_load_again(optimized: mobopt.MobileModule, net: Net, x: torch.Tensor, tmp_path: Path) -> None:
    torch.jit.save(optimized, str(tmp_path / "torch.pt"))
    optimized.save(tmp_path / "own.pt")
    optimized._save_for_lite_interpreter(str(tmp_path / "lite.ptl"))
    (tmp_path / "buffer.pt").write_bytes(optimized.save_to_buffer())
    (tmp_path / "buffer.ptl").write_bytes(optimized._save_to_buffer_for_lite_interpreter())
    with (tmp_path / "file.pt").open("wb") as file:
        torch.jit.save(optimized, file)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 6
    for path in paths:
        loaded = mobopt.load(path)
        assert_agrees(loaded(x), net(x))
        assert_agrees(loaded.halved(x), net.halved(x))
        assert_agrees(mobopt.load(path, device="cpu")(x), net(x))
        assert mobopt.export_opnames(path) == mobopt.export_opnames(optimized)


def test_cpu_bundles_load_in_stock_torch(net: Net, x: torch.Tensor, tmp_path: Path) -> None:
    from torch.jit.mobile import _load_for_lite_interpreter

    module = optimize_for_mobile(torch.jit.script(net))
    module.save(tmp_path / "m.pt")
    module._save_for_lite_interpreter(tmp_path / "m.ptl")
    assert_agrees(torch.jit.load(tmp_path / "m.pt")(x), net(x))
    assert_agrees(_load_for_lite_interpreter(str(tmp_path / "m.ptl"))(x), net(x))


@pytest.mark.parametrize("save", ["save", "_save_for_lite_interpreter"])
def test_extra_files(optimized: mobopt.MobileModule, tmp_path: Path, save: str) -> None:
    path = tmp_path / "m.ptl"
    getattr(optimized, save)(path, _extra_files={"labels.txt": "cat\ndog", "raw": b"\x00\xff"})
    with zipfile.ZipFile(path) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert records["extra/labels.txt"] == b"cat\ndog"
    assert records["extra/raw"] == b"\x00\xff"


def test_lite_options_that_mobopt_lacks(optimized: mobopt.MobileModule, tmp_path: Path) -> None:
    for option in ("_use_flatbuffer", "_save_mobile_debug_info"):
        with pytest.raises(UnsupportedError, match=f"{option}=False"):
            optimized._save_for_lite_interpreter(tmp_path / "m.ptl", **{option: True})
    assert not list(tmp_path.iterdir())


def test_unwritable_paths_leave_nothing(optimized: mobopt.MobileModule, tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "m.pt", tmp_path):
        with pytest.raises(MoboptError, match=str(path)):
            optimized.save(path)
    assert not list(tmp_path.iterdir())


def test_copies_and_pickles(optimized: mobopt.MobileModule, net: Net, x: torch.Tensor) -> None:
    for again in (copy.deepcopy(optimized), copy.copy(optimized), pickle.loads(pickle.dumps(optimized))):
        assert type(again) is mobopt.MobileModule and again is not optimized
        assert again.device == optimized.device
        assert_agrees(again(x), net(x))
        assert_agrees(again.halved(x), net.halved(x))
    buffer = io.BytesIO()
    torch.save(optimized, buffer)
    buffer.seek(0)
    assert_agrees(torch.load(buffer, weights_only=False)(x), net(x))


# Structures.


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Structures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)

    def forward(
        self,
        x: torch.Tensor,
        pair: tuple[torch.Tensor, torch.Tensor],
        items: list[torch.Tensor],
        named: dict[str, torch.Tensor],
        maybe: torch.Tensor | None = None,
        scale: float = 2.0,
    ) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor | None, float]:
        y = self.conv(x) * scale
        if maybe is not None:
            y = y + maybe
        return y, [y + pair[0], y * pair[1]], {"first": items[0] + named["a"], "y": y}, maybe, scale


@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_inputs_and_outputs(backend: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Structures().eval()
    module = optimize_for_mobile(torch.jit.script(net), backend=backend)
    one = torch.ones(1)
    args = (torch.randn(1, 2, 5, 5), (one * 3, one * 4), [one, one], {"a": one * 5})
    module._save_for_lite_interpreter(tmp_path / "m.ptl")
    for again in (module, mobopt.load(tmp_path / "m.ptl", device="cpu" if backend == "cpu" else None)):
        assert_agrees(again(*args), net(*args))
        assert_agrees(again(*args, maybe=one), net(*args, maybe=one))
        assert_agrees(again(*args, None, 3.0), net(*args, None, 3.0))


@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
def test_a_vulkan_bundle_without_weights_runs_on_the_cpu(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sigmoid() + 1

    x = torch.randn(2, 3)
    optimize_for_mobile(torch.jit.script(Plain()), backend="vulkan").save(tmp_path / "m.pt")
    for device in ("cpu", None):
        assert_agrees(mobopt.load(tmp_path / "m.pt", device)(x), Plain()(x))


class SharedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) - self.first(y)


@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
def test_shared_weights_and_several_inputs() -> None:
    torch.manual_seed(0)
    net = SharedWeights()
    x, y = torch.randn(2, 3, 4)
    assert_agrees(optimize_for_mobile(torch.jit.script(net), backend="vulkan")(x, y), net(x, y))


def test_bundled_inputs_are_kept(net: Net) -> None:
    x = torch.full((1, 3, 4, 4), 0.5)
    script = bundled_inputs.bundle_inputs(torch.jit.script(net), [(x,)])
    module = optimize_for_mobile(script, backend="vulkan")
    assert set(module.program.methods) == {
        "forward",
        "get_all_bundled_inputs",
        "get_all_bundled_inputs_for_forward",
        "get_bundled_inputs_functions_and_info",
        "get_num_bundled_inputs",
    }
    assert module.get_num_bundled_inputs() == 1
    assert torch.equal(module.get_all_bundled_inputs()[0][0], x)


def test_inputs_bundled_after_optimisation_are_saved(net: Net, tmp_path: Path) -> None:
    x = torch.full((1, 3, 4, 4), 0.5)
    module = optimize_for_mobile(torch.jit.script(net), backend="vulkan")
    bundled_inputs.augment_model_with_bundled_inputs(module, [(x,)])
    module._save_for_lite_interpreter(tmp_path / "m.ptl")
    for again in (module, mobopt.load(tmp_path / "m.ptl")):
        assert again.get_num_bundled_inputs() == 1
        assert_agrees(again(*again.get_all_bundled_inputs()[0]), net(x))
    assert not any("bundled" in item["message"] for item in mobopt.generate_mobile_module_lints(module))


# Lints, load, import.


def test_lints_are_torchs(net: Net) -> None:
    from torch.utils.mobile_optimizer import generate_mobile_module_lints

    bundled = bundled_inputs.bundle_inputs(torch.jit.script(net), [(torch.zeros(1, 3, 4, 4),)])
    for module in (torch.jit.script(net.train()), torch.jit.script(net.eval()), bundled):
        torchs = generate_mobile_module_lints(module)
        for item in torchs:  # up to 2.13 one message has a full stop too many
            item["message"] = item["message"].replace("module.and", "module and")
        assert mobopt.generate_mobile_module_lints(module) == torchs
    with pytest.raises(TypeError, match="but ScriptModule is expected"):
        mobopt.generate_mobile_module_lints(net)  # type: ignore[arg-type]


def test_load_names_an_unknown_device(optimized: mobopt.MobileModule, tmp_path: Path, x: torch.Tensor) -> None:
    optimized.save(tmp_path / "m.pt")
    with pytest.raises(mobopt.DeviceError, match="no Vulkan device 'nowhere'"):
        mobopt.load(tmp_path / "m.pt", device="nowhere")(x)


def test_import_is_lazy() -> None:
    script = "import sys, mobopt; assert 'torch' not in sys.modules; mobopt.MobileOptimizerType; dir(mobopt); "
    script += "assert 'torch' not in sys.modules; mobopt.optimize_for_mobile; assert 'vulkan' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_exists() -> None:
    for name in mobopt.__all__:
        assert getattr(mobopt, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        mobopt.optimise  # noqa: B018


def test_example_inputs_that_the_model_changes() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(0.5) + 1

    x = torch.ones(2, 3)
    for backend in BACKENDS:
        optimize_for_mobile(torch.jit.script(Halves()), backend=backend, example_inputs=[x])
    assert torch.equal(x, torch.ones(2, 3))


class _Decomposed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x)[1] * 1.0


def test_fallback_is_the_users_choice(tmp_path: Path) -> None:
    module = optimize_for_mobile(torch.jit.script(_Decomposed()), backend="vulkan", runtime="mobopt")
    module.save(str(tmp_path / "m.pt"))
    x = torch.eye(33) + 1  # matrices of at most 32 rows are for the device
    torch.testing.assert_close(mobopt.load(tmp_path / "m.pt", fallback="cpu")(x), _Decomposed()(x))
    strict = mobopt.load(tmp_path / "m.pt", fallback="error")
    for copied in (strict, copy.copy(strict), copy.deepcopy(strict), pickle.loads(pickle.dumps(strict))):
        with pytest.raises(UnsupportedError, match="linalg_qr"):
            copied(x)
    with pytest.raises(InputError, match="fallback is 'gpu'; it must be 'cpu' or 'error'"):
        mobopt.load(tmp_path / "m.pt", fallback="gpu")  # type: ignore[arg-type]
