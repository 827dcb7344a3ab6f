"""A ready-made kernel for a pipeline of Hugging Face's transformers, from a folder of the model."""

from __future__ import annotations

import json
import os
from typing import Any

from local_backend.inference.kernel.problems import KernelProblem, TaskError
from local_backend.inference.kernel.ready.base import ReadyKernel, ReadyModel, library
from local_backend.inference.kernel.tasks import TaskContext, tasks_from

#: End of the name of an architecture → task of its pipeline.
_TASKS = {
    "ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering", "ForMaskedLM": "fill-mask", "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation", "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection", "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
}


class HuggingFaceKernel(ReadyKernel):
    """Serves a pipeline. Attributes: `task`, `device`, `trust_remote_code`.

    A plain request is that of Hugging Face's inference API: {"inputs": TEXT or [TEXT, …], "parameters": {…}}. With
    "stream": true, the one text that a model generates arrives in parts, as text. In the
    Open Inference Protocol, the only input is of datatype BYTES, and each element of the output is JSON.
    """

    def load(self, model: ReadyModel) -> None:
        """Load the pipeline. Nothing is downloaded. Raises KernelProblem."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        transformers = library("transformers", "huggingface", "inference-huggingface")
        folder = model.weights if model.weights.is_dir() else model.weights.parent
        task = model.attributes.get("task") or _task_of(folder)
        self._streamer = transformers.TextStreamer
        self._pipeline = transformers.pipeline(
            task, model=str(folder), device=model.attributes.get("device"),
            trust_remote_code=model.flag("trust_remote_code"))

    def on_task_invoke(self, task_context: TaskContext) -> None:
        """Answer the tasks of a batch. Those with the same parameters are one call of the pipeline."""
        groups: dict[str, list[_Texts]] = {}
        for task in tasks_from(task_context):
            try:
                texts = _Texts(task)
            except TaskError as problem:
                task.fail(problem.sentence, problem.status)
            else:
                if texts.streams:
                    self._stream(texts)
                    continue
                groups.setdefault(json.dumps(texts.parameters, sort_keys=True), []).append(texts)
        for several in groups.values():
            self._answer_group(several)

    def _stream(self, texts: _Texts) -> None:
        """Send the text that the model generates as it comes. The end of the client ends the generation."""
        task = texts.task
        if self._pipeline.task != "text-generation" or len(texts.inputs) != 1:
            task.fail("`stream` needs a model that generates text, and one text as input.", 400)
            return

        def send(text: str, stream_end: bool = False) -> None:
            if text and not task.send(text):
                raise _ClientGone

        task.set_output_meta("text/plain; charset=utf-8")
        streamer = self._streamer(self._pipeline.tokenizer, skip_prompt=True, skip_special_tokens=True)
        streamer.on_finalized_text = send
        try:
            self._pipeline(texts.inputs[0], streamer=streamer, **texts.parameters)
            task.set_output_data("")
        except _ClientGone:
            task.fail("The client disconnected.", 499)
        except Exception as problem:
            self._failed(task, problem)

    @staticmethod
    def _failed(task: TaskContext, problem: Exception) -> None:
        status = 400 if isinstance(problem, (TypeError, ValueError)) else 500
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:500]
        task.fail(f"The pipeline failed: {reason}", status)

    def _answer_group(self, several: list[_Texts]) -> None:
        together = [one for texts in several for one in texts.inputs]
        try:
            found = self._pipeline(together, batch_size=len(together), **several[0].parameters) if together else []
        except Exception as problem:
            if len(several) > 1:
                for one in several:
                    self._answer_group([one])
                return
            self._failed(several[0].task, problem)
            return
        at = 0
        for texts in several:
            end = at + len(texts.inputs)
            texts.answer(found[at:end])
            at = end


class _ClientGone(Exception):
    """The client of a streamed answer is gone."""


class _Texts:
    """A task with the inputs of a pipeline."""

    def __init__(self, task: TaskContext) -> None:
        """Read a request. Raises TaskError."""
        self.task = task
        self.parameters: dict[str, Any] = {}
        #: Whether the client wants the answer in parts.
        self.streams = False
        length = task.meta.get("header_length")
        found = _object(task.body) if length is None else None
        self._has_tensors = found is None or _has_datatypes(found)
        if found is None or self._has_tensors:
            (array, *others) = task.tensors().values()
            if others or array.dtype != object:
                raise TaskError("The pipeline takes one input of datatype BYTES.", 400)
            self.inputs: list[Any] = [one.decode("utf-8", "replace") for one in array.reshape(-1).tolist()]
            self._alone = False
            return
        given = found.get("inputs", found.get("instances", found.get("data")))
        if given is None:
            raise TaskError("The request has no `inputs`.", 400)
        self._alone = not isinstance(given, list)
        self.inputs = given if isinstance(given, list) else [given]
        parameters = found.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise TaskError("`parameters` is not an object.", 400)
        self.parameters = parameters
        self.streams = found.get("stream") is True

    def answer(self, found: list[Any]) -> None:
        if self._has_tensors:
            self.task.set_tensors({"output": [json.dumps(one, default=_plain) for one in found]})
        else:
            self.task.set_output_meta("application/json")
            self.task.set_output_data(json.dumps(found[0] if self._alone else found, default=_plain))


def _object(body: bytes | memoryview) -> dict[str, Any]:
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as problem:
        raise TaskError(f"The request is not JSON: {problem}.", 400) from None
    if not isinstance(found, dict):
        raise TaskError("The request is not an object.", 400)
    return found


def _has_datatypes(found: dict[str, Any]) -> bool:
    inputs = found.get("inputs")
    return isinstance(inputs, list) and bool(inputs) and isinstance(inputs[0], dict) and "datatype" in inputs[0]


def _plain(value: Any) -> Any:
    """Return a value that json does not know: numbers of numpy, and others as texts."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


def _task_of(folder: Any) -> str:
    """Return the task of the model in a folder, by its architecture. Raises KernelProblem."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architectures = [str(one) for one in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError) as problem:
        raise KernelProblem(f"The folder {folder} has no config.json of a model of transformers: {problem}") from None
    for name in architectures:
        for end, task in _TASKS.items():
            if name.endswith(end):
                return task
    raise KernelProblem(f"The task of {', '.join(architectures) or folder} is not known. Set the attribute task in "
                        "model.json, such as text-classification.")
