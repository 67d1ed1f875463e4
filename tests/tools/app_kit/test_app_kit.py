"""App kits: what is in the folder, that its test data is what the file computes, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from click.testing import CliRunner
from kit_nets import EveryKind, every_kind_examples, write_every_kind

import mobopt
from mobopt.commands.group import main
from mobopt.errors import InputError
from mobopt.tools.app_kit.names import class_name, code, comment, identifier, markdown, snake_case, string_literal

GOLDEN = Path(__file__).parents[2] / "golden"


def read(folder: Path, name: str) -> torch.Tensor:
    entry = json.loads((folder / "test" / "test.json").read_text())["tensors"][name]
    data = (folder / "test" / entry["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"] and len(data) == entry["bytes"]
    array = numpy.frombuffer(data, numpy.dtype(entry["dtype"]).newbyteorder("<"))
    return torch.from_numpy(array.astype(entry["dtype"]).reshape(entry["sizes"]))


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_data_is_what_torch_computes(every_kind: Path) -> None:
    torch.manual_seed(0)
    model, examples = EveryKind().eval(), every_kind_examples()
    expected = model(*examples["forward"])
    torch.testing.assert_close(read(every_kind, "forward.input.image"), examples["forward"][0], rtol=0, atol=0)
    torch.testing.assert_close(read(every_kind, "forward.output[0]"), expected["boxes"])
    torch.testing.assert_close(read(every_kind, "forward.output[1]"), expected['a"$b\\'], rtol=0, atol=0)
    rows, (total, mean) = model.encode(*examples["encode"])
    torch.testing.assert_close(read(every_kind, "encode.input.inputIds"), examples["encode"][0], rtol=0, atol=0)
    torch.testing.assert_close(read(every_kind, "encode.output.item0"), rows)
    torch.testing.assert_close(read(every_kind, "encode.output.item1[0]"), total)
    torch.testing.assert_close(read(every_kind, "encode.output.item1[1]"), mean)
    assert read(every_kind, "half.output").dtype == torch.float16
    assert read(every_kind, "mask.output").tolist() == (examples["mask"][0] > 0).tolist()


def test_manifest_tells_values_that_are_no_tensors(every_kind: Path) -> None:
    manifest = json.loads((every_kind / "test" / "test.json").read_text())
    mixed = manifest["methods"]["mixed"]
    assert mixed["inputs"]["names"] == {"dict": [["a", 1], ["b\\", -2]]}
    assert mixed["inputs"]["t"] == {"tuple": [{"tensor": "mixed.input.t.item0"}, None]}
    assert mixed["output"]["tuple"][2:4] == [1.5, 'x"$y\n☃ ??/']
    model = (every_kind / "every_kind.ptl").read_bytes()
    assert manifest["model"]["sha256"] == hashlib.sha256(model).hexdigest()
    files = {entry["file"] for entry in manifest["tensors"].values()}
    assert len(files) == len(manifest["tensors"]) == len(list((every_kind / "test").glob("*.bin")))


@pytest.mark.parametrize("name", ["vulkan", "metal", "cpu"])
def test_golden_lstm_and_its_expected_outputs(name: str, tmp_path: Path) -> None:
    folder = GOLDEN / "pt1.13.1" / "lstm"
    inputs = [option for number in range(3) for option in ("--input", folder / f"input_{number}.npy")]
    result = invoke("app-kit", folder / f"{name}.ptl", "-o", tmp_path / "kit", *inputs, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["tested"] == ["forward"]
    for number in range(3):
        expected = torch.from_numpy(numpy.load(folder / f"expected_{number}.npy"))
        torch.testing.assert_close(read(tmp_path / "kit", f"forward.output.item{number}"), expected)
    has = {path.name for path in (tmp_path / "kit").iterdir()}
    assert ("ios" in has) == (name != "vulkan") and "android" in has  # this Metal file has nothing for the GPU


def test_metal_states_what_half_precision_costs(tmp_path: Path) -> None:
    mobopt.app_kit(GOLDEN / "pt2.13.0" / "convbnrelu6" / "metal.ptl", tmp_path / "kit")
    manifest = json.loads((tmp_path / "kit" / "test" / "test.json").read_text())
    assert 0.01 <= manifest["methods"]["forward"]["tolerance"] < 0.2
    assert not (tmp_path / "kit" / "android").exists()
    text = (tmp_path / "kit" / "README.md").read_text()
    assert "USE_PYTORCH_METAL=1" in text and "half precision" in text


def test_operator_list_is_that_of_opnames(every_kind: Path) -> None:
    expected = [f"- {name}" for name in mobopt.export_opnames(every_kind / "every_kind.ptl")]
    assert (every_kind / "operators.yaml").read_text().splitlines() == expected


def test_readme_names_all_and_leads_to_files_that_are_there(every_kind: Path) -> None:
    text = (every_kind / "README.md").read_text(encoding="utf-8")
    for method in ("forward", "encode", "pair", "mixed", "mask", "maybe", "half", "nested", "place", "nothing"):
        assert f"### `{method}`" in text
    assert "org.pytorch:pytorch_android_lite:2.1.0" in text and "pod 'LibTorch-Lite'" in text
    assert "| input | `inputIds` | `Tensor` | int64 1 x 6 |" in text
    assert "tensor of bool, which org.pytorch.Tensor has not" in text and "has the type Device" in text
    for name in re.findall(r"`((?:android|ios|cpp|test)/[\w.]+\.\w+)`", text):
        assert (every_kind / name).exists(), name


def test_names_of_files_are_no_code() -> None:
    assert identifier("input_ids") == "inputIds" and identifier("x") == "x" and identifier("1x") == "argument1x"
    assert identifier("class") == "classValue" and identifier('a"; drop()') == "aDrop" and identifier("☃") == "argument"
    assert identifier("x", taken=["x", "x2"]) == "x3"
    assert class_name("mobilenet_v2") == "MobilenetV2" and class_name("tensor") == "TensorModel"
    assert class_name('1 "x"') == "Model1X" and snake_case("MobilenetV2SSD") == "mobilenet_v2_ssd"
    assert comment("a */ b\n// c") == "a * / b/n// c"
    assert markdown("<b>|`x`") == r"\<b\>\|\`x\`" and code("a`b|c") == r"`` a`b\|c ``"
    assert string_literal('a"$\\\n', "kotlin") == r'"a\"\$\\\u000a"'
    assert string_literal("é☃", "cpp") == r'"\303\251\342\230\203"'
    assert string_literal("☃", "swift") == r'"\u{2603}"' and string_literal("𝄞", "kotlin") == r'"\ud834\udd1e"'


def test_hostile_file_name_and_class(tmp_path: Path) -> None:
    file = tmp_path / 'a" * ${x}\\ (1).ptl'
    file.write_bytes((GOLDEN / "pt2.13.0" / "mlp" / "model.ptl").read_bytes())
    kit = mobopt.app_kit(file, tmp_path / "kit")
    assert kit.class_name == "AX1" and "a_x_1.ptl" in kit.files
    for name in kit.files:
        if not name.endswith((".ptl", ".bin")):
            assert "${x}" not in (kit.folder / name).read_text(encoding="utf-8")


def test_a_folder_that_is_there_needs_force_and_must_be_a_kit(tmp_path: Path) -> None:
    file, folder = GOLDEN / "pt2.13.0" / "mlp" / "vulkan.ptl", tmp_path / "kit"
    folder.mkdir()
    assert invoke("app-kit", file, "-o", folder).exit_code == 0  # an empty one is no loss
    (folder / "old.txt").write_text("old")
    refused = invoke("app-kit", file, "-o", folder)
    assert refused.exit_code == 2 and "--force" in refused.output and (folder / "old.txt").exists()
    assert invoke("app-kit", file, "-o", folder, "--force").exit_code == 0
    assert not (folder / "old.txt").exists() and list(tmp_path.iterdir()) == [folder]
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    refused = invoke("app-kit", file, "-o", other, "--force")
    assert refused.exit_code == 2 and "no app kit" in refused.output and (other / "mine.txt").exists()
    refused = invoke("app-kit", folder / "vulkan.ptl", "-o", folder, "--force")
    assert refused.exit_code == 2 and "the model lies in it" in refused.output


def test_what_is_refused(tmp_path: Path) -> None:
    model = torch.jit.script(torch.nn.Linear(3, 2).eval())
    torch.jit.save(model, str(tmp_path / "model.pt"))
    result = invoke("app-kit", tmp_path / "model.pt", "-o", tmp_path / "kit")
    assert result.exit_code == 2 and "mobopt convert" in result.output and not (tmp_path / "kit").exists()
    result = invoke("app-kit", GOLDEN.parent / "frontends" / "turns.pt2", "-o", tmp_path / "kit")
    assert result.exit_code == 2 and "mobopt convert" in result.output
    file = GOLDEN / "pt2.13.0" / "mlp" / "model.ptl"
    result = invoke("app-kit", file, "-o", tmp_path / "none" / "kit")
    assert result.exit_code == 2 and "there is no folder" in result.output
    result = invoke("app-kit", file, "-o", tmp_path / "kit", "--random", "2,3,4,5,6,7")
    assert result.exit_code == 2 and not (tmp_path / "kit").exists()
    with pytest.raises(InputError, match="Kotlin package"):
        mobopt.app_kit(file, tmp_path / "kit", package="com.example; import evil")


def test_a_method_without_inputs_has_code_and_no_test(tmp_path: Path) -> None:
    file = write_every_kind(tmp_path / "net.ptl")
    kit = mobopt.app_kit(file, tmp_path / "kit", example_inputs=[torch.randn(1, 3, 8, 8)])
    assert kit.tested == ("forward",)
    assert any("encode has no test" in remark for remark in kit.remarks)
    assert "fun encode(inputIds: Tensor)" in (kit.folder / "android" / "Net.kt").read_text()


@pytest.mark.parametrize("method", ["forward", "encode"])
def test_a_kit_without_inputs_has_no_files_of_tests(method: str, tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b.reshape(7, 5))

        @torch.jit.export
        def encode(self, a: torch.Tensor) -> torch.Tensor:
            return a.to(torch.bool)

    script = torch.jit.script(Net().eval())
    script._save_for_lite_interpreter(str(tmp_path / "net.ptl"))
    given = None if method == "forward" else {"encode": [torch.randn(3, 7)]}
    kit = mobopt.app_kit(tmp_path / "net.ptl", tmp_path / "kit", example_inputs=given)
    readme = (kit.folder / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:android|ios|cpp|test)/[\w.]+\.\w+)`", readme))
    assert {name for name in named if "*" not in name} <= set(kit.files)
    tests = {name for name in kit.files if "est." in name or "Tests." in name or name.startswith("test/")}
    if given is None:
        assert kit.tested == () and not tests and "There is none: no method could be run" in readme
    else:  # a mask, which Kotlin does not carry
        assert kit.tested == ("encode",) and "cpp/net_test.cpp" in tests and "test/test.json" in tests
        assert "ios/NetTests.swift" in tests and "android/NetTest.kt" not in tests and "NetTest.kt" not in readme
    brackets = [text.count("{") - text.count("}") for text in _texts(kit.folder)]
    assert not any(brackets)


def _texts(folder: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in folder.glob("*/*") if path.suffix in (".kt", ".cpp", ".swift")]
