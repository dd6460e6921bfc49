"""Dense programs of a bundle: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from recgrad.errors import BundleError, RecgradError
from recgrad.serving.manifest import ProgramRecord

Arrays = Mapping[str, npt.NDArray[Any]]
_FATAL = 4  # what onnxruntime's logger says below this is for its developers


class Program(Protocol):
    """What computes outputs of inputs; any number of threads may call it."""

    def __call__(self, feeds: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs, in the order of the record."""

    def prepare(self, feeds: Arrays) -> Callable[[], list[npt.NDArray[Any]]]:
        """What gives the outputs of the same arrays again and again, as their content changes."""


class OnnxProgram:
    """An ONNX program, run by onnxruntime on the CPU; `content` instead of what the file holds."""

    def __init__(self, path: Path, record: ProgramRecord, threads: int, content: bytes | None = None) -> None:
        onnxruntime = _onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = _FATAL
        # Idle threads would keep cores busy that other requests need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                str(path) if content is None else content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has classes of its own for each kind of damage
            text = str(error).strip().partition("\n")[0]
            raise BundleError(
                f"{path}: onnxruntime {onnxruntime.__version__} cannot load it ({text})"
            ) from error
        self._outputs = list(record.outputs)
        known = {item.name for item in self._session.get_inputs()}
        given = {item.name for item in record.inputs}
        if not known <= given or not set(self._outputs) <= {
            item.name for item in self._session.get_outputs()
        }:
            raise BundleError(f"{path}: has other inputs or outputs than the manifest says; export again")
        self._run = self._session.run
        self._inputs = known

    def __call__(self, feeds: Arrays) -> list[npt.NDArray[Any]]:
        taken = {name: array for name, array in feeds.items() if name in self._inputs}
        outputs: list[npt.NDArray[Any]] = self._run(self._outputs, taken)
        return outputs

    def prepare(self, feeds: Arrays) -> Callable[[], list[npt.NDArray[Any]]]:
        """What gives the outputs of the same arrays again and again; one thread at a time."""
        return _Bound(
            self._session,
            {name: array for name, array in feeds.items() if name in self._inputs},
            dict(zip(self._outputs, map(np.ascontiguousarray, self(feeds)), strict=True)),
        )


class _Bound:
    """A session with arrays that it reads and writes where they lie.

    Args:
        session: of onnxruntime.
        inputs: by name.
        outputs: by name, overwritten by each call.
    """

    def __init__(self, session: Any, inputs: Arrays, outputs: Arrays) -> None:
        self._run, self._binding = session.run_with_iobinding, session.io_binding()
        self._inputs, self._outputs = inputs, list(outputs.values())
        for bind, arrays in ((self._binding.bind_input, inputs), (self._binding.bind_output, outputs)):
            for name, array in arrays.items():
                bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def __call__(self) -> list[npt.NDArray[Any]]:
        self._run(self._binding)
        return [output.copy() for output in self._outputs]


class TorchProgram:
    """A program of torch.export, for models that ONNX cannot express; needs torch."""

    def __init__(self, path: Path, record: ProgramRecord, threads: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise RecgradError(
                f"{path}: this model could not be written as ONNX ({record.note}), so it needs torch; "
                "install it with: pip install torch"
            ) from error
        self._torch = torch
        self._names = [item.name for item in record.inputs]
        try:
            self._module = torch.export.load(path).module()
        except Exception as error:
            raise BundleError(f"{path}: torch {torch.__version__} cannot load it ({error})") from error

    def __call__(self, feeds: Arrays) -> list[npt.NDArray[Any]]:
        torch = self._torch
        with torch.inference_mode():
            tensors = [torch.from_numpy(np.require(feeds[name], requirements="W")) for name in self._names]
            outputs = self._module(*tensors)
        return [output.numpy() for output in outputs]

    def prepare(self, feeds: Arrays) -> Callable[[], list[npt.NDArray[Any]]]:
        """What gives the outputs of the same arrays again and again."""
        return partial(self, feeds)


PROGRAMS: dict[str, Callable[[Path, ProgramRecord, int], Program]] = {
    "onnx": OnnxProgram,
    "torch_export": TorchProgram,
}
"""What runs a program, by the kind that the manifest says."""


def load_program(folder: Path, record: ProgramRecord, threads: int) -> Program:
    """The program of a record."""
    if record.kind not in PROGRAMS:
        raise BundleError(
            f"{folder}: no program of kind '{record.kind}'; use the Recgrad that wrote the bundle"
        )
    return PROGRAMS[record.kind](folder / record.file, record, threads)


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise RecgradError(
            "scoring a bundle needs onnxruntime; install it with: pip install 'recgrad[serve]'"
        ) from error
    return onnxruntime
