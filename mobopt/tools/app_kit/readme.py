"""The kit's README: what the file is, what loads it, how to build and call it, how to test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mobopt.ir.nests import leaves_of
from mobopt.ops.targets.table import release_key
from mobopt.tools.app_kit.cpp import namespace
from mobopt.tools.app_kit.description import Description, Method, dtype_name, named_tensors, sizes_text
from mobopt.tools.app_kit.names import code, markdown, snake_case
from mobopt.tools.app_kit.releases import AARS, JAVA_MOVES_UNTIL, PODS, newest_published, tag
from mobopt.tools.requirements import OLDEST

_NAMES = {"vulkan": "Vulkan", "metal": "Metal", "xnnpack": "the CPU with XNNPACK", "cpu": "the CPU"}
_LAYOUTS = {3: "C x H x W, if it is an image", 4: "N x C x H x W", 5: "N x C x D x H x W"}


def readme(kit: Description) -> str:
    """The file ``README.md``."""
    lines = [
        f"# {kit.class_name}",
        "",
        f"{code(kit.file)} is a model for PyTorch Mobile on {_NAMES[kit.needs.backend]}, with code that calls it"
        + (" and a test." if kit.tests else "."),
        "Made by `mobopt app-kit`; the code is yours to change.",
        "",
        *_contents(kit),
        "",
        "## Methods",
        "",
    ]
    for method in kit.methods:
        lines += [*_method(kit, method), ""]
    lines += [*_loading(kit), ""]
    if kit.needs.backend != "metal":
        lines += [*_android(kit), ""]
    if kit.needs.backend != "vulkan":
        lines += [*_ios(kit), ""]
    lines += [*_selective(kit), "", *_test(kit)]
    return "\n".join(lines) + "\n"


def _contents(kit: Description) -> Iterator[str]:
    name, short = kit.class_name, snake_case(kit.class_name)
    yield "| file | what it is |"
    yield "|---|---|"
    yield f"| {code(kit.file)} | the model |"
    if kit.needs.backend != "metal":
        yield f"| `android/{name}.kt` | Kotlin on org.pytorch |"
        if kit.kotlin_tests:
            yield f"| `android/{name}Test.kt` | an instrumented test |"
    if kit.needs.backend != "vulkan":
        yield f"| `ios/{name}.h`, `ios/{name}.mm`, `ios/{name}.swift` | the bridge, and what Swift adds |"
        if kit.tests:
            yield f"| `ios/{name}Tests.swift` | a test |"
    yield f"| `cpp/{short}_model.h`, `cpp/{short}_model.cpp` | C++ for the bridge and the NDK |"
    if kit.tests:
        yield f"| `cpp/{short}_test.cpp` | a test program |"
        yield "| `test/test.json`, `test/*.bin` | example inputs, expected outputs |"
    yield f"| `operators.yaml` | the {len(kit.operators)} operators that the file asks of a runtime |"


def _method(kit: Description, method: Method) -> Iterator[str]:
    called = "" if method.identifier == method.name else f" (in the code: `{method.identifier}`)"
    yield f"### {code(method.name)}{called}"
    yield ""
    if method.example is None:
        yield "No inputs of this method are known, so it has no test, and no dtypes or sizes are known."
        yield (
            f"Give some with `--random {markdown(method.name)}:1,3,224,224` or `--input {markdown(method.name)}:x.npy`."
        )
        yield ""
    yield "| | name | type | in the test | layout | range in the test |"
    yield "|---|---|---|---|---|---|"
    values = [None] * len(method.arguments) if method.example is None else method.example.arguments
    for argument, value in zip(method.arguments, values, strict=True):
        yield (
            f"| input | {code(argument.identifier)} | {code(argument.type)} | "
            f"{_value_cells(value, method.example is not None)} |"
        )
    yield f"| output | | {code(method.type)} | {_output_cells(method)} |"
    for name, tensor in named_tensors(method):
        if name.startswith(f"{method.identifier}.output") and name != f"{method.identifier}.output":
            short = name.removeprefix(f"{method.identifier}.output").removeprefix(".")
            yield f"| part | {code(short)} | | {_tensor_cells(tensor)} |"
    if method.example is not None:
        yield ""
        yield (
            f"Inputs of the test: {method.example.origin}. What a file takes beyond the sizes tried is not known here."
        )
    for reason, where in ((method.reason_not_carried, "the code of this kit"), (method.reason_not_in_java, "Kotlin")):
        if reason:
            yield ""
            yield f"It can't be called from {where}: {markdown(reason)}."
            if where == "Kotlin":
                yield "Change the dtype inside the model, or call it from C++, which carries it."
            break


def _value_cells(value: Any, is_known: bool) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor_cells(value)
    if not is_known:
        return "| | "
    tensors = list(leaves_of(value, torch.Tensor))
    text = f"{len(tensors)} tensors" if tensors else code(repr(value)[:60])
    return f"{text} | | "


def _output_cells(method: Method) -> str:
    if method.example is None or not isinstance(method.example.result, torch.Tensor):
        return "| | "
    return _tensor_cells(method.example.result)


def _tensor_cells(tensor: torch.Tensor) -> str:
    layout = _LAYOUTS.get(tensor.dim(), "")
    finite = tensor.double()[tensor.double().isfinite()] if not tensor.is_complex() else tensor.new_empty(0).double()
    span = f"{finite.min().item():.5g} to {finite.max().item():.5g}" if finite.numel() else ""
    return f"{dtype_name(tensor)} {sizes_text(tensor)} | {layout} | {span}"


def _loading(kit: Description) -> Iterator[str]:
    needs = kit.needs
    yield "## What loads it"
    yield ""
    if needs.oldest is None:
        yield "**No release of PyTorch loads this file**:"
    else:
        until = f" to {needs.newest}" if needs.newest else " or newer"
        yield f"PyTorch {needs.oldest}{until}, by what the file asks for:"
    yield ""
    yield from (f"- {markdown(str(need))}" for need in needs.decisive)
    if not needs.decisive:
        yield "- nothing that a release since 1.9 lacks"
    yield from (f"- {markdown(note)}" for note in needs.notes)
    if any(need.what.startswith("torchvision::") for need in needs.decisive):
        yield ""
        yield (
            "What torchvision brings is in `torchvision_ops` (`android/ops` of https://github.com/pytorch/vision) and "
            "in the pod `LibTorchvision`, each for one release of PyTorch; C++ may register it itself with "
            "`TORCH_LIBRARY`. An app that links it loads the file, if the rest fits."
        )
    yield ""
    yield "A file that `mobopt convert` made is right on the release of its `--runtime` and on later ones."


def _android(kit: Description) -> Iterator[str]:
    library = "pytorch_android_lite" if kit.is_lite else "pytorch_android"
    yield "## Android"
    yield ""
    if kit.needs.backend == "vulkan":
        yield "The AARs on Maven Central have no Vulkan. Build one, with the Android SDK, an NDK and Gradle at hand:"
        yield ""
        yield from _build(kit, "USE_VULKAN=1 ", "./scripts/build_pytorch_android.sh arm64-v8a")
        yield ""
        yield "and take it, with what it needs:"
        yield ""
        yield from _local_gradle()
        if kit.moves_tensors:
            yield ""
            yield (
                f"The graph has no transfers, so Java works up to {JAVA_MOVES_UNTIL} only, where it moves the "
                "inputs; the C++ code moves them itself."
            )
            yield "`mobopt convert` writes files with transfers, for any release."
    else:
        version = newest_published(kit.needs, AARS)
        if version:
            yield "```groovy"
            yield f"implementation 'org.pytorch:{library}:{version}'"
            yield "```"
            fitting = ", ".join(v for r, v in AARS.items() if newest_published(kit.needs, {r: v}))
            yield ""
            yield f"Published versions that load the file: {fitting}."
        else:
            yield "No AAR on Maven Central loads the file; build one:"
            yield ""
            yield from _build(kit, "", "./scripts/build_pytorch_android.sh arm64-v8a")
            yield ""
            yield from _local_gradle()
    yield ""
    yield (
        f"Put {code(kit.file)} into `src/main/assets`, and `android/{kit.class_name}.kt` into "
        "`src/main/java`. Keep the file uncompressed:"
    )
    suffix = kit.file.rpartition(".")[2]
    yield f'`androidResources {{ noCompress += "{suffix}" }}`. Then:'
    yield ""
    yield "```kotlin"
    yield f"{kit.class_name}.fromAssets(context).use {{ model ->"
    first = next((method for method in kit.methods if not method.reason_not_in_java), None)
    if first is None:
        yield "    // no method can be called from Kotlin, see above"
    else:
        yield (
            "    val result = "
            f"model.{first.identifier}({', '.join(argument.identifier for argument in first.arguments)})"
        )
    yield "}"
    yield "```"
    yield ""
    yield (
        "A tensor is made of a direct buffer (`Tensor.allocateFloatBuffer`) or an array by "
        "`Tensor.fromBlob(data, shape)`; its elements are"
    )
    yield (
        "row-major. Pixels that lie as N x H x W x C go in with `Tensor.fromBlob(data, shape, "
        "MemoryFormat.CHANNELS_LAST)`, the shape still as"
    )
    yield (
        "N x C x H x W; ask `memoryFormat()` of a result before you read its data, for it may lie so too. An "
        "empty list of anything but tensors,"
    )
    yield (
        "ints, floats or bools reaches the model as a list of tensors, and `org.pytorch.DType` has float32, "
        "float64, int64, int32, int8 and uint8 only."
    )


def _build(kit: Description, switches: str, script: str) -> Iterator[str]:
    moves_in_java = kit.moves_tensors and kit.needs.backend == "vulkan"
    release = max(kit.needs.oldest or OLDEST, "1.13" if moves_in_java else "2.1", key=release_key)
    yield "```bash"
    yield (
        f"git clone --depth 1 --recursive --shallow-submodules --branch {tag(release)} "
        "https://github.com/pytorch/pytorch"
    )
    yield "cd pytorch"
    lite = "" if kit.is_lite else "BUILD_LITE_INTERPRETER=0 "
    yield f"{switches}{lite}SELECTED_OP_LIST=/path/of/operators.yaml {script}"
    yield "```"


def _local_gradle() -> Iterator[str]:
    yield "```groovy"
    yield "implementation files('libs/pytorch_android-release.aar')"
    yield "implementation 'com.facebook.fbjni:fbjni-java-only:0.2.2'"
    yield "implementation 'com.facebook.soloader:nativeloader:0.10.5'"
    yield "```"


def _ios(kit: Description) -> Iterator[str]:
    pod = "LibTorch-Lite" if kit.is_lite else "LibTorch"
    name = kit.class_name
    yield "## iOS"
    yield ""
    version = newest_published(kit.needs, PODS)
    if kit.needs.backend == "metal":
        yield "Don't count on Metal in the pods; build the library, on a Mac:"
        yield ""
        yield from _build(kit, "IOS_PLATFORM=OS IOS_ARCH=arm64 USE_PYTORCH_METAL=1 ", "./scripts/build_ios.sh")
        yield ""
        yield (
            "Link `build_ios/install/lib/*.a` with `-force_load` for libtorch.a and libtorch_cpu.a, add "
            "`build_ios/install/include` to the header"
        )
        yield (
            "search paths, and the frameworks Accelerate, Metal and MetalPerformanceShaders. Metal needs a "
            "phone: simulators have no such kernels."
        )
    elif version:
        yield "```ruby"
        yield f"pod '{pod}', '~> {version}'"
        yield "```"
    else:
        yield "No pod is new enough; build the library, on a Mac:"
        yield ""
        yield from _build(kit, "IOS_PLATFORM=OS IOS_ARCH=arm64 ", "./scripts/build_ios.sh")
    yield ""
    short = snake_case(name)
    yield f"Add the files of `ios/` and `cpp/{short}_model.*` to the target, compile C++ as C++17 or newer, and write"
    yield f'`#import "{name}.h"` into the bridging header. {code(kit.file)} is a resource of the app. Then:'
    yield ""
    yield "```swift"
    yield f"let model = try {name}()"
    first = next((method for method in kit.methods if not method.reason_not_carried), None)
    if first is not None:
        arguments = ", ".join(f"{argument.identifier}: {argument.identifier}" for argument in first.arguments)
        yield f"let result = try model.{first.identifier}({arguments})"
    yield "```"
    yield ""
    yield (
        f"`{name}Tensor(values, shape: [1, 3, 224, 224])` makes a tensor of float32, and `elements(of: "
        "Float.self)` takes the elements out."
    )


def _selective(kit: Description) -> Iterator[str]:
    yield "## A library with this model's operators only"
    yield ""
    yield (
        "`operators.yaml` is the list that `SELECTED_OP_LIST` takes, as `torch.jit.export_opnames` gives it; "
        "the commands above use it. For an app with"
    )
    yield (
        "several models, join their lists. What a kernel calls inside is added by PyTorch's build. `mobopt "
        "opnames` prints it in other forms."
    )
    yield f"Full libraries are built without it. For C++ of an own build: `namespace {namespace(kit)}`, `class Model`."


def _test(kit: Description) -> Iterator[str]:
    name, short = kit.class_name, snake_case(kit.class_name)
    yield "## The test"
    yield ""
    if not kit.tests:
        yield from _why_no_test(kit)
        return
    yield (
        "Expected outputs are those of mobopt's reference interpreter on the CPU, in float32. A "
        "floating-point tensor agrees if no element is off by"
    )
    yield (
        "more than a part of its largest magnitude; integers are to be equal, though an index may differ "
        "where two values are closer than that:"
    )
    yield ""
    yield from (f"- {code(method.name)}: {example.tolerance:g}{_why(kit)}" for method, example in kit.tests)
    yield ""
    if kit.kotlin_tests and kit.needs.backend != "metal":
        yield (
            f"- Android: `android/{name}Test.kt` into `src/androidTest/java`, what is in `test/` into "
            "`src/androidTest/assets`; needs"
        )
        yield (
            "  `androidTestImplementation 'androidx.test.ext:junit:1.1.5'` and `androidx.test:runner:1.5.2`; "
            "`./gradlew connectedAndroidTest`."
        )
    if kit.needs.backend != "vulkan":
        yield (
            f"- iOS: `ios/{name}Tests.swift` into the test target, what is in `test/`, and the model, as its resources."
        )
    yield f"- C++: `cpp/{short}_test.cpp` with the model's `.cpp`; run it with the path of the model and of `test/`."


def _why_no_test(kit: Description) -> Iterator[str]:
    if any(method.example is None for method in kit.methods):
        yield "There is none: no method could be run here, as no inputs are known, so there is nothing to compare with."
        yield "Make the kit again with `--random` or `--input`."
    else:
        yield "There is none: what the methods take and give is not of dtypes and types that this kit's tests hold."


def _why(kit: Description) -> str:
    if kit.needs.backend == "metal":
        return (
            " (Metal's kernels compute in half precision: 0.01, or twice what that costs this model, if that is more)"
        )
    return " (GPUs' functions are less exact than the CPU's)" if kit.needs.backend == "vulkan" else ""
