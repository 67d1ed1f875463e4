from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_shaders import chain, scale, tensor

from mobopt.runtimes.vulkan.engine.staging import stage
from mobopt.runtimes.vulkan.engine.stream import Copy, Dispatch, HostCall, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import StorageKind


def test_nothing_is_copied_on_unified_memory():
    stream = chain(3, 16)
    staged = stage(stream, stage_inputs=False, stage_outputs=False)
    assert list(staged.operations) == stream.operations
    assert staged.inputs == tuple(stream.inputs)
    assert staged.outputs == tuple(stream.outputs)


def test_inputs_are_copied_where_the_host_cannot_write_device_memory():
    stream = chain(1, 16)
    staged = stage(stream, stage_inputs=True, stage_outputs=True)
    first = staged.operations[0]
    assert isinstance(first, Copy)
    assert first.source.storage is staged.inputs[0].storage
    assert first.target.storage is stream.inputs[0].storage
    assert stream.inputs[0].storage in staged.device_storages
    assert staged.outputs == tuple(stream.outputs)


def test_an_output_that_is_read_again_stays_on_the_device():
    stream = chain(2, 16)
    middle = tensor(StorageKind.OUTPUT, 16)
    stream.operations = [scale(stream.inputs[0], middle, 1.0), scale(middle, stream.outputs[0], 1.0)]
    stream.outputs.append(middle)
    staged = stage(stream, stage_inputs=False, stage_outputs=True)
    assert [type(operation) for operation in staged.operations] == [Dispatch, Dispatch, Copy]
    assert staged.device_storages == {middle.storage}


@pytest.mark.parametrize(("rows", "is_copied"), [(1, False), (683, True)])
def test_an_output_of_many_single_elements_crosses_the_bus_by_a_copy(rows: int, is_copied: bool):
    stream, result = Stream(), tensor(StorageKind.OUTPUT, rows, 7)
    source = tensor(StorageKind.INPUT, rows, 7)
    by_element = bind(result, writes=True, by_element=True)
    stream.operations = [replace(scale(source, result, 1.0), bindings=(bind(source), by_element))]
    stream.inputs, stream.outputs = [source], [result]
    staged = stage(stream, stage_inputs=False, stage_outputs=True)
    assert staged.device_storages == ({result.storage} if is_copied else set())
    assert [type(operation) for operation in staged.operations] == [Dispatch, *[Copy] * is_copied]
    unified = stage(stream, stage_inputs=False, stage_outputs=False)
    assert list(unified.operations) == stream.operations


def test_an_output_that_is_an_input_or_a_temporary_is_copied():
    x = tensor(StorageKind.INPUT, 4)
    staged = stage(Stream([], [x], [x]), stage_inputs=False, stage_outputs=False)
    (copy,) = staged.operations
    assert isinstance(copy, Copy)
    assert staged.outputs[0].storage.kind is StorageKind.OUTPUT


def test_a_host_call_stands_between_copies():
    source, target = tensor(StorageKind.TEMPORARY, 6), tensor(StorageKind.TEMPORARY, 6)
    view = source.view((2, 2), (3, 1), 1)
    call = HostCall(lambda values: (values,), (view,), (target,))
    staged = stage(Stream([call], [], []), stage_inputs=False, stage_outputs=False)
    download, host, upload = staged.operations
    assert isinstance(download, Copy)
    assert isinstance(upload, Copy)
    assert isinstance(host, HostCall)
    # Only the bytes that the view spans: elements 1 to 5.
    assert (download.source.offset, download.source.nbytes, download.target.nbytes) == (4, 20, 20)
    assert (host.inputs[0].offset, host.inputs[0].strides) == (0, (3, 1))
    assert upload.target.storage is target.storage


def test_an_empty_tensor_is_not_copied():
    x = tensor(StorageKind.TEMPORARY, 0, 3)
    staged = stage(Stream([], [], [x]), stage_inputs=False, stage_outputs=False)
    assert staged.operations == ()
    assert staged.outputs[0].sizes == (0, 3)
    assert staged.outputs[0].dtype == torch.float32
