"""Sentences of the checks of a submission, in the words of model definitions and experiments: these have keys, not the
options of a command line. Pure."""

from __future__ import annotations

import re

#: Sentence or option of a command line → the same for an object.
_SENTENCES = tuple((re.compile(pattern), said) for pattern, said in (
    (r"--model-main is missing, and the folder has (.+?); add --model-main FILE",
     r"the code has \1: name the file to run, such as train.py, in the execution command"),
    (r"--model-main: the upload does not contain the file", "the code does not contain the file"),
    (r"; to create a path of type fs, add --create-data-path",
     "; choose another path, or let the experiment create missing folders"),
    (r"add --allow-cpu to run it on CPU slots, or submit it to a server with GPUs",
     "choose CPU as the device, or a server with GPUs"),
    (r"--data-source\b", "the data source"), (r"--numWorker\b", "the number of nodes"),
    (r"--workerDeviceType\b", "the device"), (r"--conda-env-name\b", "the conda environment"),
    (r"--msd-env\b", "the environment variables"), (r"--appName\b", "the name"),
    (r"--(?:model-main|user-cmd)\b", "the execution command"),
    (r"--msd-attr minWorkers\b", "the minimum number of nodes"),
))


def in_object_words(sentence: str) -> str:
    """Return a sentence about a submission as one about a model definition or an experiment."""
    for pattern, said in _SENTENCES:
        sentence = pattern.sub(said, sentence)
    return sentence
