"""``mobopt audit``: models before conversion, optimised files, operator lists, pages, and what can't be audited."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from click.testing import CliRunner
from command_harness import Invoke, assert_refused, make_model, rewrite, run_mobopt
from model_zoo import ZOO
from sampling import sampled
from torch import nn

import mobopt
from mobopt.commands import main
from mobopt.tools.audit import short_source
from mobopt.tools.audit_page import page

GOLDEN = Path(__file__).parents[1] / "golden"
SHAPE = (1, 8, 9, 7)


class _Mixed(nn.Module):
    """A native convolution, two layers that are rewritten, and integers, which Vulkan has not."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(8, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.max_pool2d(self.grouped(self.plain(x)), 3, 2, 1)
        return torch.argmax(y.flatten(1), 1)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mixed.pt, its bundles for each backend, and input.npy."""
    folder = tmp_path_factory.mktemp("mixed")
    torch.manual_seed(0)
    torch.jit.save(torch.jit.script(_Mixed().eval()), str(folder / "mixed.pt"))
    numpy.save(folder / "input.npy", numpy.random.default_rng(0).normal(size=SHAPE).astype(numpy.float32))
    for name, *options in (("vulkan.ptl",), ("vulkan.pt",), ("cpu.ptl", "--backend", "cpu")):
        command = ["convert", str(folder / "mixed.pt"), "-o", str(folder / name), *options, "--random", "1,8,9,7"]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    return folder


def audited(invoke: Invoke, *arguments: object, code: int = 0) -> dict[str, Any]:
    result = invoke("audit", *arguments, "--json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def line(found: dict[str, Any], operator: str, verdict: str) -> dict[str, Any]:
    (only,) = [item for item in found["lines"] if (item["operator"], item["verdict"]) == (operator, verdict)]
    return dict(only)


def test_a_model_before_conversion(invoke: Invoke, mixed: Path) -> None:
    found = audited(invoke, mixed / "mixed.pt", "--input", mixed / "input.npy")
    assert line(found, "aten::conv2d", "native")["sources"][0].endswith("in plain")
    grouped = line(found, "aten::conv2d", "rewritten")
    assert grouped["rewrite"] == "split_groups"
    assert "groups" in grouped["reason"]
    assert not grouped["fixes_sizes"]
    assert grouped["sources"][0].endswith("in grouped")
    assert grouped["operands"] == "float32[1, 8, 9, 7], float32[8, 2, 3, 3], float32[8]"
    assert line(found, "aten::max_pool2d", "rewritten")["rewrite_summary"]
    assert "int64" in line(found, "aten::argmax", "cpu")["reason"]
    assert found["is_good"]
    assert found["inputs"] == "float32[1, 8, 9, 7] (given)"


def test_the_worst_comes_first_and_counts_add_up(invoke: Invoke, mixed: Path) -> None:
    found = audited(invoke, mixed / "mixed.pt", "--random", "1,8,9,7")
    verdicts = [item["verdict"] for item in found["lines"]]
    order = ["wrong", "missing", "unknown", "cpu", "rewritten", "native"]
    assert verdicts == sorted(verdicts, key=order.index)
    assert sum(found["counts"].values()) == sum(item["count"] for item in found["lines"])


def test_without_legalisation_what_is_wrong_stays_wrong(invoke: Invoke, mixed: Path) -> None:
    found = audited(invoke, mixed / "mixed.pt", "--random", "1,8,9,7", "--legalize", "off", code=1)
    assert line(found, "aten::conv2d", "wrong")["rewrite"] == "split_groups"
    assert line(found, "aten::argmax", "missing")
    assert found["counts"]["wrong"] >= 2


@pytest.mark.parametrize("name", ["vulkan.ptl", "vulkan.pt"])
def test_an_optimised_file_is_judged_where_its_nodes_run(invoke: Invoke, mixed: Path, name: str) -> None:
    found = audited(invoke, mixed / name, "--random", "1,8,9,7")
    assert found["is_bundle"]
    assert found["backend"] == "vulkan"
    assert line(found, "vulkan_prepack::run_conv2d_context", "native")["count"] == 2
    assert line(found, "aten::argmax", "cpu")
    assert not found["counts"].keys() & {"wrong", "missing", "rewritten"}


class _OfList(nn.Module):
    """Takes what no inputs are guessed for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
        return self.layer(images[0])  # type: ignore[no-any-return]


def test_only_sizes_tell(invoke: Invoke, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(_OfList().eval()), str(tmp_path / "list.pt"))
    found = audited(invoke, tmp_path / "list.pt")
    assert found["inputs"] == ""
    assert "not known" in line(found, "aten::conv2d", "cpu")["reason"]
    result = invoke("audit", tmp_path / "list.pt", "--html", "page.html")
    assert "no sizes are known" in result.stdout
    assert "no sizes are known" in (tmp_path / "page.html").read_text()
    sized = mobopt.audit(tmp_path / "list.pt", example_inputs=[[torch.rand(1, 3, 5, 7)]])
    assert [(item.operator, item.verdict) for item in sized.lines if "conv" in item.operator] == [
        ("aten::conv2d", "native")
    ]


def test_a_cpu_file_is_native(invoke: Invoke, mixed: Path) -> None:
    found = audited(invoke, mixed / "cpu.ptl")
    assert found["backend"] == "cpu"
    assert set(found["counts"]) == {"native"}


@pytest.mark.parametrize("variant", ["vulkan", "metal", "cpu"])
@pytest.mark.parametrize("net", ["convbnrelu6", "mobilenetv2"])
@pytest.mark.parametrize("ending", ["pt", "ptl"])
def test_genuine_files(invoke: Invoke, variant: str, net: str, ending: str) -> None:
    folder = GOLDEN / "pt1.13.1" / net
    found = audited(invoke, folder / f"{variant}.{ending}", "--runtime", "1.13", "--input", folder / "input_0.npy")
    assert found["backend"] == variant
    packed = {"vulkan": "vulkan_prepack::", "metal": "metal_prepack::", "cpu": "prepacked::"}[variant]
    verdicts = {item["verdict"] for item in found["lines"] if item["operator"].startswith(packed)}
    assert verdicts == {"native"}
    assert set(found["operators"]) == set(json.loads((folder / "opnames.json").read_text())[variant])


def test_branches_that_are_not_taken_are_not_held_against_a_file(invoke: Invoke) -> None:
    folder = GOLDEN / "pt1.13.1" / "mixed"
    found = audited(invoke, folder / "vulkan.ptl", "--runtime", "1.13", "--input", folder / "input_0.npy")
    assert "not reached" in line(found, "aten::upsample_nearest3d.vec", "unreached")["reason"]


def test_a_genuine_file_whose_convolution_is_wrong_on_the_phone(invoke: Invoke, mixed: Path, tmp_path: Path) -> None:
    command = ("convert", mixed / "mixed.pt", "-o", "off.ptl", "--legalize", "off", "--random", "1,8,9,7", "--force")
    assert invoke(*command).exit_code == 0
    found = audited(invoke, tmp_path / "off.ptl", "--random", "1,8,9,7", code=1)
    assert found["counts"]["wrong"] >= 2
    assert any("groups" in item["reason"] for item in found["lines"] if item["verdict"] == "wrong")


def test_the_table(invoke: Invoke, mixed: Path) -> None:
    result = invoke("audit", mixed / "mixed.pt", "--random", "1,8,9,7")
    assert result.exit_code == 0, result.output
    assert "aten::argmax" in result.stdout
    assert re.search(r"split_groups: \w+", result.stdout)
    assert "CPU on the device: right, but slow" in result.stdout


class _Encoder(nn.Module):
    """A normalisation and an attention that phones lack, and what surrounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads, self.out = nn.LayerNorm(24), nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.heads(self.norm(x)).reshape(1, 7, 3, 2, 12).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(split[0], split[1], split[2])
        return torch.relu(self.out(mixed.transpose(1, 2).reshape(1, 7, 24)))


def test_causes_come_before_what_follows_from_them(invoke: Invoke, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.jit.save(torch.jit.script(_Encoder().eval()), str(tmp_path / "encoder.pt"))
    found = audited(invoke, tmp_path / "encoder.pt", "--random", "1,7,24")
    causes = {cause["operator"]: cause for cause in found["causes"]}
    assert list(causes) == ["aten::layer_norm", "aten::scaled_dot_product_attention"]
    assert [cause["count"] for cause in causes.values()] == [1, 1]
    on_cpu = [item for item in found["lines"] if item["verdict"] == "cpu"]
    assert [item["operator"] for item in on_cpu if not item["follows"]] == list(causes)
    assert on_cpu == sorted(on_cpu, key=lambda item: bool(item["follows"]))
    for operator, cause in causes.items():
        assert cause["followers"] == sum(item["count"] for item in on_cpu if item["follows"] == operator) > 0
    assert causes["aten::layer_norm"]["microseconds"] > 0
    # One head at a time would do without five dimensions, which keep their tensors on the CPU whatever attention does.
    assert causes["aten::scaled_dot_product_attention"]["microseconds"] < 5
    attention = 2 * 7 * 7 * 24
    assert found["gpu_share"] == pytest.approx(1 - attention / (attention + 7 * 24 * 96), abs=0.05)
    assert found["microseconds"] >= max(cause["microseconds"] for cause in causes.values())
    printed = invoke("audit", tmp_path / "encoder.pt", "--random", "1,7,24").stdout
    caused = sum(cause["count"] + cause["followers"] for cause in causes.values())
    norm, other = causes.values()
    assert re.search(
        rf"\d\d% of the multiply-adds run on the GPU; {caused} operators run on the CPU because of 2 of them: "
        rf"1 aten::layer_norm \({norm['followers']} more follows?; a kernel saves about 0.\d\d ms a call\), "
        rf"1 aten::scaled_dot_product_attention \({other['followers']} more follow\)\.",
        printed,
    )
    assert "nothing by itself" in printed


class _Halves(nn.Module):
    """Arithmetic on sizes, which traces have as operators on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(self.norm(x))
        return torch.relu(y.reshape(y.size(0), y.size(1), 2, y.size(2) // 2))


def test_arithmetic_on_sizes_is_no_operator_that_waits_for_a_kernel(invoke: Invoke, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(_Halves().eval(), torch.zeros(1, 7, 24)), str(tmp_path / "halves.pt"))
    found = audited(invoke, tmp_path / "halves.pt", "--random", "1,7,24")
    (cause,) = found["causes"]
    others = found["counts"]["cpu"] - cause["count"] - cause["followers"]
    assert cause["operator"] == "aten::layer_norm" and others > 0
    printed = invoke("audit", tmp_path / "halves.pt", "--random", "1,7,24").stdout
    assert f" on the CPU because of 1 of them: 1 aten::layer_norm ({cause['followers']} more" in printed
    assert f"; {others} more only compute sizes." in printed
    on_cpu = [item for item in found["lines"] if item["verdict"] == "cpu"]
    assert on_cpu[0]["operator"] == "aten::layer_norm" and not on_cpu[-1]["follows"]  # sizes come last
    follows = [bool(item["follows"]) for item in on_cpu[1:]]
    assert follows[0] and follows == sorted(follows, reverse=True)
    invoke("audit", tmp_path / "halves.pt", "--random", "1,7,24", "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.search(r"<b>Nothing is missing or wrong, and \d+% of the multiply-adds run on the GPU\.</b>", page)
    assert 'class="outcome partly"' in page


def test_many_lines_of_one_operator_are_shortened() -> None:
    assert short_source("a.py:1, a.py:2") == "a.py:1, a.py:2"
    assert short_source("a.py:1 in x, a.py:2, b.py:3, b.py:4") == "a.py:1 in x and 3 more lines"


def test_allow_in_both_forms(invoke: Invoke, mixed: Path, tmp_path: Path) -> None:
    for form in ("list", "dict"):
        text = invoke("opnames", mixed / "vulkan.ptl", "--format", form).stdout
        (tmp_path / "ops.yaml").write_text(text)
        found = audited(invoke, mixed / "vulkan.ptl", "--random", "1,8,9,7", "--allow", "ops.yaml")
        assert found["missing_from_build"] == []
        (tmp_path / "ops.yaml").write_text(text.replace("aten::argmax", "aten::argmin"))
        result = invoke("audit", mixed / "vulkan.ptl", "--random", "1,8,9,7", "--allow", "ops.yaml")
        assert result.exit_code == 1
        assert "Missing from the build" in result.stdout
        assert "- aten::argmax\n" in result.stdout


def test_allow_for_a_model_asks_for_the_operators_of_its_optimised_file(invoke: Invoke, mixed: Path) -> None:
    Path("ops.yaml").write_text("[]\n")
    found = audited(invoke, mixed / "mixed.pt", "--random", "1,8,9,7", "--allow", "ops.yaml", code=1)
    assert "vulkan_prepack::run_conv2d_context" in found["missing_from_build"]
    assert "aten::conv2d" not in found["missing_from_build"]


def test_device_profile(invoke: Invoke, mixed: Path, tmp_path: Path) -> None:
    result = invoke("audit", mixed / "mixed.pt", "--random", "1,8,9,7", "--device-profile", "adreno-6xx")
    assert result.exit_code == 0, result.output
    assert "Everything fits adreno-6xx" in result.stdout
    small = ("--random", "1,8,260,3", "--device-profile", "vulkan-minimum")
    result = invoke("audit", mixed / "vulkan.ptl", *small, "--html", "page.html")
    assert result.exit_code == 1
    assert re.search(r"float32\[1, 8, 260, 3\] needs an image of 3x260x2 texels", result.stdout)
    assert "3x260x2" in (tmp_path / "page.html").read_text(encoding="utf-8")
    result = invoke("audit", mixed / "mixed.pt", *small)
    assert result.exit_code == 0, "a conversion for this device keeps its limit"


def test_the_page_needs_no_network_and_says_everything(invoke: Invoke, mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "ops.yaml").write_text("- aten::argmax\n")
    options = ("--random", "1,8,9,7", "--device-profile", "vulkan-minimum", "--allow", "ops.yaml")
    result = invoke("audit", mixed / "mixed.pt", *options, "--html", "page.html")
    assert result.exit_code == 1, result.output
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=|https?:|@import|url\(", text)
    for part in ("split_groups", "aten::argmax", "vulkan-minimum", "The conversion:", "prefers-color", "- aten::to"):
        assert part in text, part
    assert [item.name for item in tmp_path.glob("*.html*")] == ["page.html"]
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(".")]


def test_names_in_the_page_are_escaped() -> None:
    found = mobopt.audit(torch.jit.script(make_model()), example_inputs=[torch.rand(1, 3, 5, 5)])
    hostile = type(found)(**{**vars(found), "model": "<script>alert(1)</script>"})
    assert "<script>alert" not in page(hostile)
    assert "&lt;script&gt;alert" in page(hostile)


def test_a_page_that_cannot_be_written(invoke: Invoke, mixed: Path) -> None:
    result = invoke("audit", mixed / "mixed.pt", "--random", "1,8,9,7", "--html", "none/page.html")
    assert_refused(result, "none")


@pytest.fixture(scope="session")
def custom_operator() -> None:
    """`audit_test::twice`, for the rest of the process."""
    library = torch.library.Library("audit_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    _LIBRARIES.append(library)


_LIBRARIES: list[torch.library.Library] = []


@pytest.mark.usefixtures("custom_operator")
def test_an_operator_of_no_pytorch_is_missing() -> None:
    class _Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.audit_test.twice(x)  # type: ignore[no-any-return]

    found = mobopt.audit(torch.jit.script(_Custom().eval()), example_inputs=[torch.rand(2, 3)])
    (only,) = [item for item in found.lines if item.operator == "audit_test::twice"]
    assert only.verdict == "missing"
    assert "audit_test" in only.reason
    assert not found.is_good


def test_python_takes_modules_paths_and_optimised_modules(mixed: Path) -> None:
    x = torch.rand(SHAPE)
    module = torch.jit.load(str(mixed / "mixed.pt"))
    lines = mobopt.audit(module, example_inputs=[x]).lines
    assert lines == mobopt.audit(mixed / "mixed.pt", "vulkan", "2.1", [x]).lines
    optimized = mobopt.optimize_for_mobile(module, backend="vulkan", example_inputs=[x])
    found = mobopt.audit(optimized, example_inputs=[x])
    assert found.is_bundle
    assert found.lines == mobopt.audit(mixed / "vulkan.ptl", example_inputs=[x]).lines or found.is_good
    with pytest.raises(mobopt.ArgumentTypeError):
        mobopt.audit(nn.ReLU())  # type: ignore[arg-type]


def test_auditing_changes_no_module() -> None:
    module = torch.jit.script(make_model())
    before = str(module.graph)
    mobopt.audit(module, example_inputs=[torch.rand(1, 3, 5, 5)])
    assert str(module.graph) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "cuda"), "Unknown backend"),
        (("--runtime", "1.0"), "1.0"),
        (("--legalize", "much"), "much"),
        (("--device-profile", "adreno-6x"), "adreno-6xx"),
        (("--device-profile", "apple-a9"), "metal"),
        (("--backend", "cpu", "--device-profile", "adreno-6xx"), "no device profiles"),
        (("--allow", "none.yaml"), "none.yaml"),
        (("--random", "1,3"), ""),
        (("--input", "none.npy"), "none.npy"),
        (("--random", "1,8,9,7", "--input", "x.npy"), "not both"),
    ],
)
def test_wrong_arguments(invoke: Invoke, mixed: Path, options: tuple[str, ...], message: str) -> None:
    assert_refused(invoke("audit", mixed / "mixed.pt", *options), message)


def test_wrong_arguments_for_an_optimised_file(invoke: Invoke, mixed: Path) -> None:
    assert_refused(invoke("audit", mixed / "vulkan.ptl", "--backend", "metal"), "optimised for vulkan")
    assert_refused(invoke("audit", mixed / "vulkan.ptl", "--legalize", "safe"), "optimised already")


def test_files_that_cannot_be_read(invoke: Invoke, mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no model" * 50)
    assert_refused(invoke("audit", tmp_path / "text.pt"), "text.pt")
    whole = (mixed / "vulkan.ptl").read_bytes()
    (tmp_path / "half.ptl").write_bytes(whole[: len(whole) // 2])
    assert_refused(invoke("audit", tmp_path / "half.ptl"), "half.ptl")
    broken = rewrite(mixed / "vulkan.ptl", tmp_path / "broken.ptl", {"bytecode.pkl": b"\x80\x02nonsense"})
    assert_refused(invoke("audit", broken), "broken.ptl")
    torch.save({"weight": torch.rand(3)}, str(tmp_path / "weights.pt"))
    assert_refused(invoke("audit", tmp_path / "weights.pt"), "checkpoint")


def test_the_real_program(mixed: Path, tmp_path: Path) -> None:
    result = run_mobopt("audit", mixed / "mixed.pt", "--legalize", "off", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "wrong" in result.stdout
    assert "Traceback" not in result.stderr


def _script(name: str) -> torch.jit.ScriptModule:
    module: torch.jit.ScriptModule = torch.jit.script(ZOO[name].build().eval())
    return module


@pytest.mark.parametrize("name", sampled(["mobilenet_v2", "squeezenet1_1", "unet_transposed"], one_in=2))
@pytest.mark.parametrize("backend", ["vulkan", "cpu"])
def test_real_models_have_nothing_missing(name: str, backend: str) -> None:
    found = mobopt.audit(_script(name), backend, example_inputs=[torch.rand(1, 3, 64, 64)])
    assert found.is_good, found.problems
    assert sum(item.count for item in found.lines if "conv" in item.operator) > 15


@pytest.mark.parametrize("name", sampled(["mobilenet_v2", "shufflenet_v2_x1_0", "unet_transposed"], one_in=2))
def test_the_optimised_file_of_a_model_is_good_too(name: str) -> None:
    x = torch.rand(1, 3, 64, 64)
    optimized = mobopt.optimize_for_mobile(_script(name), backend="vulkan", example_inputs=[x])
    found = mobopt.audit(optimized, example_inputs=[x])
    assert found.is_good, [item for item in found.lines if item.verdict in ("wrong", "missing")]
