"""What ``optimize_for_mobile`` and ``load`` return: a ScriptModule that runs where it was made for."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, Protocol

import torch
from torch._jit_internal import createResolutionCallbackFromFrame
from torch.jit._recursive import wrap_cpp_module

from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.bundle.prepare import names_in_files
from mobopt.errors import InputError, UnsupportedError
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.options import SINGLE, FallbackChoice, Precision, PrecisionChoice, check_fallback
from mobopt.runtimes.bounds import DeclaredBounds, InputBounds, bounds_of
from mobopt.runtimes.cpu.kernels import describe
from mobopt.runtimes.half_ranges import ValueRanges, check_patterns
from mobopt.runtimes.state import ModelState
from mobopt.stand_in import is_stock, stand_in

if TYPE_CHECKING:
    from mobopt.passes.notes import Note
    from mobopt.runtimes.vulkan.plan_report import PlanReport

ExtraFiles = Mapping[str, str | bytes]
_CHOICES = ("_fallback", "_bounds", "_precision", "_keep_clock")
"""What a module and its copies have in common, in the order of the arguments that make one."""
_making_states = threading.Lock()


class _Runtime(Protocol):
    def run(self, method: str, args: Sequence[Any]) -> Any: ...


class MobileModule(torch.jit.RecursiveScriptModule):  # type: ignore[misc, name-defined]
    """An optimised module: callable, and saved in PyTorch Mobile's formats.

    For torch it is a ScriptModule (``m.graph``, ``m.code``, ``torch.jit.save``, ``torch.jit.export_opnames`` work);
    calls run on a Vulkan device or on the CPU. Pickle and deepcopy keep it what it is.
    """

    def __init__(
        self,
        program: Program,
        device: int | str | None = None,
        notes: Sequence[Note] = (),
        fallback: FallbackChoice = "cpu",
        bounds: DeclaredBounds | None = None,
        precision: PrecisionChoice = SINGLE,
        keep_clock: bool = False,
    ) -> None:
        """Make a module of a Program.

        Args:
            program: the optimised model; must not change any more.
            device: ``"cpu"``, or the Vulkan device to run on: a number, a part of a name, or None for the best.
                It is opened by the first call.
            notes: what the passes said.
            fallback: whether operators without a GPU kernel run on the CPU, or end the call in an error.
            bounds: by method, for each tensor of its arguments, of each dimension the least and the largest size, or
                None: ``{"forward": [[None, None, (32, 512), (32, 512)]]}``. Calls with other sizes are refused, and
                those within them are planned without another trace of the model. Without them, the ranges that the
                model was exported with.
            precision: how float32 tensors lie in the device's memory. It is not saved with the module.
            keep_clock: whether the clock of an NVIDIA GPU stays up between calls; see :func:`load`.

        Raises:
            InputError: ``fallback`` is neither, a range of bounds has no size in it, or no node matches a pattern of
                ``precision``.
            UnsupportedError: halves, or a clock that stays up, are asked for of a module that runs on the CPU.
        """
        check_fallback(fallback)
        if precision.is_half and device == "cpu":
            raise UnsupportedError(
                f"precision={precision.precision!r} halves what lies in the memory of a Vulkan device, and the module "
                "runs on the CPU; choose a device, or precision='fp32'"
            )
        if keep_clock and device == "cpu":
            raise UnsupportedError(
                "keep_clock=True holds the clock of an NVIDIA GPU up, and the module runs on the CPU; leave it out"
            )
        check_patterns(program, precision.fp32_nodes)
        self.__dict__["_precision"], self.__dict__["_ranges"] = precision, ValueRanges()
        self.__dict__["_bounds"] = bounds = bounds_of(program) if bounds is None else bounds
        self.__dict__["_input_bounds"] = InputBounds(bounds)
        self.__dict__.update(_program=program, _device=device, _runtime=None, _is_extended=False, notes=tuple(notes))
        self.__dict__["_fallback"], self.__dict__["_keep_clock"] = fallback, keep_clock
        self.__dict__["_state"] = None

    def _become_script_module(self) -> None:
        """Make what torch looks at, which is not before it does.

        That declares operators which torch lacks, for the whole process; a loader of stock torch could then no longer
        say that it doesn't know them.
        """
        base = stand_in(self._current_program())
        super().__init__(base._c)
        self.__dict__.update({name: value for name, value in base.__dict__.items() if name not in ("_c", "training")})
        self.__dict__["_names_in_torch"] = names_in_files(self.program)
        self._show_state()

    def _show_state(self) -> None:
        """Let torch see the state: buffers of the stand-in are the state's own tensors."""
        for name, value in self.model_state.share().items():
            self._c.setattr(self.__dict__["_names_in_torch"][name], value)

    @property
    def program(self) -> Program:
        """The graphs and attributes that the module was made of; of :attr:`model_state`, only how it began."""
        if self.__dict__["_is_extended"]:
            extended = self._extended_program()
            state = self.model_state.moved_to(extended)
            self.__dict__.update(_program=extended, _state=state, _is_extended=False, _runtime=None)
        program: Program = self.__dict__["_program"]
        return program

    @property
    def model_state(self) -> ModelState:
        """The values of the attributes that methods change."""
        state: ModelState | None = self.__dict__["_state"]
        if state is not None:
            return state
        with _making_states:  # two threads that call a new module share its state
            if self.__dict__["_state"] is None:
                self.__dict__["_state"] = ModelState(self.__dict__["_program"])
        return self.model_state

    def _current_program(self) -> Program:
        """The Program with the state of now; it may share tensors with the state."""
        return self.model_state.written_into(self.program)

    def define(self, src: str) -> None:
        """Add a method, given as TorchScript source; ``torch.utils.bundled_inputs`` does so."""
        resolve = createResolutionCallbackFromFrame(frames_up=1)
        self._c._define(self._concrete_type, src, resolve)
        self.__dict__["_is_extended"] = True

    def _extended_program(self) -> Program:
        """The Program with the methods, and their attributes, that the stand-in has been given since it was made."""
        from mobopt.frontends.torchscript import program_from_script_module  # few modules need it

        program: Program = self.__dict__["_program"].clone()
        added = [name for name in self._c._method_names() if name not in program.methods]
        translated = program_from_script_module(wrap_cpp_module(self._c), added)  # type: ignore[no-untyped-call]
        program.methods.update((name, translated.methods[name]) for name in added)
        program.attributes.update(
            (name, item) for name, item in translated.attributes.items() if name not in program.attributes
        )
        program.metadata["defaults"] = translated.metadata.get("defaults", {}) | program.metadata.get("defaults", {})
        return program

    @property
    def device(self) -> int | str | None:
        """Where calls run: ``"cpu"``, or a Vulkan device (None: the best)."""
        device: int | str | None = self.__dict__["_device"]
        return device

    @property
    def precision(self) -> PrecisionChoice:
        """How float32 tensors lie in the device's memory."""
        choice: PrecisionChoice = self.__dict__["_precision"]
        return choice

    def learn_ranges(self, by_method: Mapping[str, Sequence[Any]]) -> None:
        """Run methods on the CPU in float32, so that what becomes too large or too small for float16 on these arguments
        keeps float32; a module of another precision learns nothing.

        Raises:
            InputError: the arguments don't fit the model.
        """
        for method, args in by_method.items() if self.precision.precision == "fp16" else ():
            self.__dict__["_ranges"].learn(self.program, method, bind_arguments(self.program, method, args, {}))

    @property
    def runtime(self) -> Any:
        """What runs the calls; :class:`mobopt.runtimes.vulkan.program.VulkanProgram` unless the device is the CPU.

        Raises:
            DeviceError: there is no such device.
        """
        if self.__dict__["_runtime"] is None:
            self.__dict__["_runtime"] = self._open_runtime()
        return self.__dict__["_runtime"]

    def _open_runtime(self) -> _Runtime:
        if self.device != "cpu":
            from mobopt.runtimes.vulkan.program import VulkanProgram

            return VulkanProgram(
                _in_floats(self.program),
                self.device,
                self.__dict__["_fallback"],
                self.model_state,
                self.__dict__["_input_bounds"],
                self.precision,
                self.__dict__["_ranges"],
                self.__dict__["_keep_clock"],
            )
        if is_stock(self.program) and not self.model_state.names:
            return _TorchRuntime(self._c)
        from mobopt.runtimes.cpu import Interpreter

        return Interpreter(self.program, self.model_state)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``."""
        return self._run("forward", args, kwargs)

    def run_on_device(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` with arrays on the device, so that what one model gives the next takes without a copy.

        Args:
            args: as for a call; tensors are those of the CPU, or a :class:`DeviceArray` that an earlier call gave.
            kwargs: as for a call.

        Returns:
            The result with arrays in place of tensors: ``array.tensor()`` and ``array.numpy()`` copy to the CPU. What
            the device has no elements for (float64, complex128, int64 beyond 32 bits) is a tensor on the CPU.

        Raises:
            UnsupportedError: the module runs on the CPU.
            InputError: the arguments don't fit the model.
            DeviceError: the device failed.
        """
        return self._vulkan("run_on_device").run_on_device(*self._bound("forward", args, kwargs))

    def plan_report(self, *args: Any, **kwargs: Any) -> PlanReport:
        """What a call of ``forward`` with such arguments is made of; printed, it says what ran on the CPU, and why.

        Raises:
            UnsupportedError: the module runs on the CPU.
            InputError: the arguments don't fit the model.
        """
        method, bound = self._bound("forward", args, kwargs)
        report: PlanReport = self._vulkan("plan_report").plan_report(bound, method)
        return report

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start to run ``forward``; the future's ``result()`` is what a call returns, or raises its error.

        Two calls are in flight at once, and a third waits here for one of them. Those of a model with state run one
        after the other, in the order of the submissions. Arguments must not be changed before the future is done.

        Raises:
            UnsupportedError: the module runs on the CPU.
            InputError: the arguments don't fit the method.
        """
        future: Future[Any] = self._vulkan("submit").submit(*self._bound("forward", args, kwargs))
        return future

    def submit_on_device(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """As :meth:`submit`, with the result of :meth:`run_on_device`."""
        runtime = self._vulkan("submit_on_device")
        future: Future[Any] = runtime.submit(*self._bound("forward", args, kwargs), on_device=True)
        return future

    def _bound(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[Any]]:
        bound = bind_arguments(self.program, method, args, kwargs)
        if self.device == "cpu":
            self.__dict__["_input_bounds"].check(method, bound)
        return method, bound

    def _vulkan(self, wanted: str) -> Any:
        """The runtime of a Vulkan device.

        Raises:
            UnsupportedError: the module runs on the CPU.
        """
        if self.device == "cpu":
            raise UnsupportedError(f"the module runs on the CPU, and {wanted} needs a Vulkan device; load it for one")
        return self.runtime

    def _run(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = self.runtime.run(*self._bound(method, args, kwargs))
        if "_initializing" in self.__dict__ and self.model_state.names:
            self._show_state()
        return result

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.model_state.names:
            self.model_state.assign(name, value)
        super().__setattr__(name, value)

    @property
    def forward(self) -> MobileMethod:  # type: ignore[override]
        """The method ``forward``."""
        return self._method("forward")

    def __getattr__(self, name: str) -> Any:
        if "_program" in self.__dict__:
            if name in self.program.methods:
                return self._method(name)
            if "_initializing" not in self.__dict__:
                self._become_script_module()
                return getattr(self, name)
        return super().__getattr__(name)

    def _method(self, name: str) -> MobileMethod:
        if name not in self.program.methods:
            raise AttributeError(f"the module has no method {name!r}; it has {', '.join(self.program.methods)}")
        methods: dict[str, MobileMethod] = self.__dict__.setdefault("_mobile_methods", {})
        if name not in methods:  # one object each, as in torch: bundled_inputs has dictionaries of methods
            methods[name] = MobileMethod(
                lambda: self._c._get_method(name), lambda *args, **kwargs: self._run(name, args, kwargs)
            )
        return methods[name]

    def eval(self) -> MobileModule:
        """Nothing to do: an optimised module is in evaluation mode."""
        return self

    def train(self, mode: bool = True) -> MobileModule:
        """Refuse training mode.

        Raises:
            UnsupportedError: ``mode`` is true.
        """
        if mode:
            raise UnsupportedError("an optimised module can't be trained; train the original and optimise it again")
        return self

    def save(self, f: str | PathLike[str], _extra_files: ExtraFiles | None = None) -> None:
        """Write a TorchScript archive (.pt) to a path; the path is untouched if that fails."""
        with self.model_state.lock:
            write_torchscript(self._current_program(), f, extra_files=_extra_files)

    def save_to_buffer(self, _extra_files: ExtraFiles | None = None) -> bytes:
        """The bytes of a TorchScript archive."""
        return _to_bytes(lambda buffer: self.save(buffer, _extra_files))  # type: ignore[arg-type]

    def _save_for_lite_interpreter(
        self,
        f: str | PathLike[str],
        _extra_files: ExtraFiles | None = None,
        _save_mobile_debug_info: bool = False,
        _use_flatbuffer: bool = False,
    ) -> None:
        """Write a lite interpreter bundle (.ptl) to a path; the path is untouched if that fails."""
        _refuse_lite_options(_save_mobile_debug_info, _use_flatbuffer)
        with self.model_state.lock:
            write_lite(self._current_program(), f, extra_files=_extra_files)

    def _save_to_buffer_for_lite_interpreter(
        self,
        _extra_files: ExtraFiles | None = None,
        _save_mobile_debug_info: bool = False,
        _use_flatbuffer: bool = False,
    ) -> bytes:
        """The bytes of a lite interpreter bundle."""
        _refuse_lite_options(_save_mobile_debug_info, _use_flatbuffer)
        return _to_bytes(lambda buffer: self._save_for_lite_interpreter(buffer, _extra_files))  # type: ignore[arg-type]

    def __copy__(self) -> MobileModule:
        twin = self._twin(self.program)
        twin.__dict__["_state"] = self.model_state.shallow_copy()
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> MobileModule:
        program = self.program.clone()
        with self.model_state.lock:
            program.attributes = {
                name: replace(item, value=copy.deepcopy(item.value, memo))
                for name, item in self._current_program().attributes.items()
            }
        return self._twin(program)

    def _twin(self, program: Program) -> MobileModule:
        """A module of another Program with the choices of this one."""
        own = self.__dict__
        twin = MobileModule(program, self.device, self.notes, *(own[name] for name in _CHOICES))
        twin.__dict__["_ranges"] = own["_ranges"]
        return twin

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _restore, (self.save_to_buffer(), self.device, *(self.__dict__[name] for name in _CHOICES))


class MobileMethod:
    """One method of a :class:`MobileModule`: callable, with what torch's ScriptMethod has beside (``graph``, ``code``,
    ``schema``, ``name``)."""

    def __init__(self, script_method: Callable[[], Any], run: Callable[..., Any]) -> None:
        """Make a method.

        Args:
            script_method: gives torch's own.
            run: runs it.
        """
        self._script_method = script_method
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method."""
        return self._run(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._script_method(), name)


class _TorchRuntime:
    """Runs a module whose every operator is torch's own."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def run(self, method: str, args: Sequence[Any]) -> Any:
        """What the method returns."""
        try:
            with torch.no_grad():
                return self._module._get_method(method)(*args)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise InputError(f"{method} can't take these inputs ({describe(list(args))}): {reason}") from error


def load(
    path: str | PathLike[str] | IO[bytes],
    device: int | str | None = None,
    fallback: FallbackChoice = "cpu",
    *,
    _extra_files: dict[str, Any] | None = None,
    libraries: Collection[str] = (),
    bounds: DeclaredBounds | None = None,
    precision: Precision = "fp32",
    fp32_nodes: str | Iterable[str] = (),
    keep_clock: bool = False,
) -> MobileModule:
    """Read a bundle (.pt or .ptl), made by mobopt or by PyTorch, as a callable module.

    Nothing in the file is executed by reading it. It runs as it is; one that isn't optimised is faster after
    :func:`optimize_for_mobile` with ``runtime="mobopt"``, which folds and fuses operators.

    Args:
        path: the file, or a file object.
        device: ``"cpu"`` for the reference interpreter, or the Vulkan device to run on: a number of
            ``mobopt devices``, a part of a name, or None for the best one.
        fallback: ``"cpu"``, or ``"error"``: a call ends in an error that names the operators without a GPU kernel.
        _extra_files: as for ``torch.jit.load``: each key that the file has gets the content as its value, bytes.
        libraries: namespaces of operators beyond torch's own that the file may name, such as ``torchvision``; import
            the library that registers them first.
        bounds: of the sizes of inputs; see :class:`MobileModule`.
        precision: ``"fp16"``: on a Vulkan device, weights and tensors between operators lie in memory as float16, but
            for those that rounding would harm; arithmetic, inputs and results stay float32. The first call that meets a
            part of the model is computed on the CPU too, to see which. ``"bf16"``: as bfloat16, which holds all
            magnitudes, with an eighth of the bits.
        fp32_nodes: a pattern, or several, of operators (``"aten::softmax"``) or lines (``"*attention*"``) whose nodes
            keep float32.
        keep_clock: whether an NVIDIA GPU's clock stays up between calls for as long as the module lives, by an open
            CUDA context (``libcuda`` of the driver, nothing to install): calls after a pause are faster, and the GPU
            takes more power while it idles. Of another device, the first call ends in an UnsupportedError that says why
            not.

    Returns:
        A callable module; the device is opened by the first call.

    Raises:
        BundleError: the file is damaged, hostile, or of a form that mobopt does not read.
        InputError: ``fallback`` is neither, a range of bounds has no size in it, there is no such precision, or no node
            matches a pattern.
        UnsupportedError: ``precision`` is not ``"fp32"``, or ``keep_clock`` is true, and the device the CPU.
    """
    choice = PrecisionChoice.of(precision, fp32_nodes)
    program = read_bundle(path, libraries=libraries)
    for name in _extra_files or {}:
        if _extra_files is not None and name in program.metadata["extra_files"]:
            _extra_files[name] = program.metadata["extra_files"][name]
    return MobileModule(program, device, fallback=fallback, bounds=bounds, precision=choice, keep_clock=keep_clock)


def _in_floats(program: Program) -> Program:
    """A file for phones may have integers; mobopt's own runtime has floats for them, which are rounded alike."""
    marks = ("quantized::", "aten::quantize_per_tensor")
    if not any(node.op.startswith(marks) for graph in program.methods.values() for node in graph.walk()):
        return program
    from mobopt.frontends.torchscript import in_floats

    return in_floats(program, heeds_reduced_range=False)


def _restore(
    content: bytes,
    device: int | str | None,
    fallback: FallbackChoice,
    bounds: DeclaredBounds | None,
    precision: PrecisionChoice,
    keep_clock: bool = False,
) -> MobileModule:
    return load(
        io.BytesIO(content),
        device,
        fallback,
        bounds=bounds,
        precision=precision.precision,
        fp32_nodes=precision.fp32_nodes,
        keep_clock=keep_clock,
    )


def _to_bytes(write: Callable[[IO[bytes]], None]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _refuse_lite_options(debug_info: bool, flatbuffer: bool) -> None:
    if flatbuffer:
        raise UnsupportedError("mobopt writes lite bundles as zip archives only; leave _use_flatbuffer=False")
    if debug_info:
        raise UnsupportedError("mobopt writes no debug records into bundles; leave _save_mobile_debug_info=False")
