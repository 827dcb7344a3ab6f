"""A worker process: connects to the hub of its job, gets the job, trains its shards, obeys.

The main script does not run here; functions and classes of it arrive by value, modules beside it are importable.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from local_backend.elastic import artifacts
from local_backend.elastic.data import VALIDATION, Loader, load_datasets, seed_everything, to_device, unpack
from local_backend.elastic.errors import EngineError, GroupBroken, HubGone
from local_backend.elastic.events import BatchResult
from local_backend.elastic.frames import Message, receive_frame, send_frame
from local_backend.elastic.group import Group, Meeting
from local_backend.elastic.hooks import LoggerHooks, Values, call
from local_backend.elastic.hub_io import results_to_wire
from local_backend.elastic.job import Job, describe_exception
from local_backend.elastic.plan import Plan, batches, derive_seed
from local_backend.elastic.reporting import Meter, default_block
from local_backend.elastic.surroundings import choose_device, reproducible
from local_backend.elastic.training import Trainer

#: Seconds that a worker whose group broke waits for the hub before it gives up.
ORDERS_SECONDS = 60.0


class Link:
    """The connection to the hub."""

    def __init__(self, number: int, address: str, key: str) -> None:
        """Raises HubGone when there is no hub."""
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)))
        except OSError as error:
            raise HubGone(f"there is no hub at {address}: {error.strerror}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send({"op": "hello", "worker": number, "key": key})

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, attachment: bytes = b"") -> None:
        """Raises HubGone."""
        try:
            send_frame(self._socket, message, attachment)
        except OSError:
            raise HubGone("the driver is gone") from None

    def receive(self, seconds: float | None = None) -> tuple[Message, bytes]:
        """The next message and its attachment. Raises HubGone, also when none comes in that time."""
        self._socket.settimeout(seconds)
        try:
            frame = receive_frame(self._socket)
        except OSError:
            frame = None
        self._socket.settimeout(None)
        if frame is None:
            raise HubGone("the driver is gone")
        return frame

    def close(self) -> None:
        self._socket.close()


class Journal:
    """The worker's log on stderr, in the form that WMLA's had, and the per-batch output on stdout or to a logger."""

    def __init__(self, number: int, quiet: bool, logger: Any) -> None:
        """`quiet`: say nothing by ourselves. `logger`: the user's logger for workers."""
        self._hooks = LoggerHooks(logger) if logger is not None else None
        self._blocks = not quiet and logger is None
        self._log = logging.Logger(f"worker-{number}", logging.CRITICAL + 1 if quiet else logging.INFO)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s - root - %(levelname)s - %(message)s"))
        self._log.addHandler(handler)
        self._meter, self._tests = Meter(), Meter()
        self.count = 0

    def say(self, text: str) -> None:
        self._log.info(text)

    def begin_epoch(self) -> None:
        self._meter.reset()
        self._tests.reset()

    def batch(self, result: BatchResult, epoch: int, counter: int, workers: int) -> None:
        """A batch of this worker: its own loss, its running accuracy. `counter`: see `Worker._counter`."""
        self._meter.add(result)
        self.count += 1
        if self._blocks:
            print(default_block(self.count, counter, result.loss, self._meter.accuracy), flush=True)
        if self._hooks:
            metrics = {"loss": result.loss, "accuracy": (result.correct or 0) / result.count, **result.metrics}
            self._hooks.train_metrics(
                Values(result.loss, self._meter.accuracy, self.count, metrics, self.count, epoch, workers)
            )

    def tested(self, result: BatchResult, epoch: int, workers: int) -> None:
        """A validation batch of this worker, the values over its batches so far."""
        number = self._tests.batches
        self._tests.add(result)
        known = {} if result.correct is None else {"accuracy": self._tests.accuracy}
        if self._blocks:
            for name, value in {**known, "loss": self._tests.loss_of_batches}.items():
                print(f"Iteration {number}: tag test_{name}, simple_value {round(value, 5)}", flush=True)
        if self._hooks:
            metrics = {**self._tests.metrics, "loss": self._tests.loss_of_batches}
            metrics = metrics if known else {"loss": metrics["loss"]}
            self._hooks.test_metrics(
                Values(metrics["loss"], self._tests.accuracy, number, metrics, number, epoch, workers)
            )

    def begin_training(self) -> None:
        self.say("--------START TRAINING--------")
        if self._hooks:
            self._hooks.train_begin()

    def end_training(self) -> None:
        if self._hooks:
            self._hooks.train_end()
        if self._blocks:
            print(f"--------END TRAINING: completed {self.count} iterations --------", flush=True)


class Worker:
    """One member, from its data sets to the final state."""

    def __init__(self, number: int, link: Link, job: Job, quiet: bool = False) -> None:
        self._number = number
        self._link = link
        self._job = job
        self._journal = Journal(number, quiet, job.worker_logger)
        self._device = choose_device()
        self._group: Group | None = None

    def run(self) -> None:
        """Train to the end of the job. Raises what user code raises, EngineError, GroupBroken and HubGone."""
        try:
            self._prepare_data()
            self._start(self._order("start"))
            self._train()
        finally:
            if self._group is not None:
                self._group.drop()

    def _prepare_data(self) -> None:
        journal, job = self._journal, self._job
        self._order("load")
        journal.say("create dataset")
        self._train_set, self._test_set = load_datasets(job.datasets_function)
        test_batches = len(list(batches(len(self._test_set), job.batch)))
        if job.fn_test is not None:
            test_batches = min(1, test_batches)
        journal.say("create dataloader")
        journal.say(f"! dataset size {len(self._train_set)}, batch size {job.batch}")
        self._link.send({"op": "ready", "samples": len(self._train_set), "test_batches": test_batches})

    def _order(self, *expected: str) -> Message:
        """The hub's next message, which must be one of those."""
        message, _ = self._link.receive()
        if message["op"] not in expected:
            raise EngineError(f"the hub said {message['op']!r} where {' or '.join(expected)} was expected")
        return message

    def _start(self, order: Mapping[str, Any]) -> None:
        self._plan = plan = Plan(**order["plan"])
        self._members: list[int] = order["members"]
        self._rank = self._members.index(self._number)
        job = self._job
        job.move(self._device)
        if self._device.type == "cuda":
            self._journal.say(f"CUDA Device set to: {self._device.index}")
        if len(self._members) > 1:
            meeting = Meeting(order["store"])
            self._group = meeting.form(order["generation"], self._rank, len(self._members), self._device)
        private = (self._link.descriptor,)
        loader = Loader(self._train_set, plan.seed, job.fn_batch_collate, job.loader_threads, private)
        self._test_loader = Loader(self._test_set, plan.seed, job.fn_batch_collate, job.loader_threads, private)
        self._trainer = Trainer(job, plan, loader, self._device)
        self._journal.say(f"grad size {self._trainer.layout.gradient_size}")
        self._journal.say(f"epoch start, total epoch {plan.epochs}")

    def _train(self) -> None:
        job, plan = self._job, self._plan
        for callback in job.callbacks:
            callback.params = {"optimizer": job.optimizer, "epochs": plan.epochs}
            callback.model = job.model
        self._callbacks(0, "on_train_begin")
        self._journal.begin_training()
        for epoch in range(plan.epochs):
            self._callbacks(epoch, "on_epoch_begin", epoch)
            self._epoch(epoch)
            last = epoch == plan.epochs - 1
            writes = last and self._number == min(self._members)
            self._callbacks(epoch, "on_epoch_end", epoch, save_model=writes)
            order = self._boundary(epoch)
        self._callbacks(plan.epochs, "on_train_end")
        self._journal.end_training()
        state = job.state() if order["writer"] == self._number else b""
        self._link.send({"op": "finished"}, state)

    def _callbacks(self, epoch: int, hook: str, *arguments: Any, **optional: Any) -> None:
        """Every worker runs the same callbacks with the same random numbers, so that replicas stay equal."""
        seed_everything(derive_seed(self._plan.seed, 4, epoch))
        for callback in self._job.callbacks:
            call(callback, hook, *arguments, **optional)

    def _epoch(self, epoch: int) -> None:
        plan, journal = self._plan, self._journal
        journal.say(f"<=== Epoch {epoch} Begin ==> ")
        journal.begin_epoch()
        self._trainer.relayout()
        for step, results in self._trainer.steps(epoch, self._rank, len(self._members), self._group):
            done = epoch * plan.steps_per_epoch + step
            self._link.send({"op": "step", "step": done, "results": results_to_wire(results)})
            for result in results:
                counter = self._counter(epoch, step * plan.shards + result.number)
                journal.batch(result, epoch, counter, len(self._members))
        journal.say(f"<=== Epoch {epoch} End ==> ")

    def _counter(self, epoch: int, batch: int) -> int:
        """The server's counter as recorded: over all batches of the job 2, 3, ..., where the last of an epoch repeats
        the number of the one before."""
        in_epoch = self._plan.batches_per_epoch
        return epoch * in_epoch + min(batch + 2, in_epoch)

    def _boundary(self, epoch: int) -> Message:
        """Do what the hub says after an epoch, until it says to go on or to finish."""
        self._link.send({"op": "boundary", "epoch": epoch})
        while True:
            order = self._order("save", "test", "go", "finish")
            if order["op"] == "save":
                self._save(order["epoch"], order["final"])
                self._link.send({"op": "done"})
            elif order["op"] == "test":
                results = self._trainer.test(self._test_loader, order["first"], order["last"])
                for result in results:
                    self._journal.tested(result, epoch, len(self._members))
                self._link.send({"op": "done", "results": results_to_wire(results)})
            else:
                if order["accuracy"] is not None and self._number == min(self._members):
                    self._journal.say(f"epoch={epoch} validation_accuracy: {order['accuracy']:.4f}")
                return order

    def _save(self, epoch: int, final: bool) -> None:
        job = self._job
        self._journal.say(f"save model under: {artifacts.train_dir()}")
        artifacts.save_checkpoint(job.model, job.optimizer, "final" if final else str(epoch))
        self._journal.say(f"save models for epoch {epoch} ")
        if final and job.save_to_onnx:
            (batch,) = Loader(self._train_set, self._plan.seed, job.fn_batch_collate).load([[(VALIDATION, 0)]])
            trouble = artifacts.export_onnx(job.model, to_device(unpack(batch)[0], self._device))
            if trouble:
                print(f"WARNING: {trouble}", file=sys.stderr, flush=True)


def serve(number: int, address: str, key: str, own: Job | None = None) -> None:
    """Be worker `number` of the hub at `address`. `own`: the job, when this is the driver's process.

    Shows an exception on stderr (of a worker process) and tells the hub before raising it.
    """
    link = Link(number, address, key)
    try:
        message, payload = link.receive()
        _find_modules(message["path"])
        if own is None:
            # Modules beside the script may parse the command line when they are imported.
            sys.argv[:] = message["argv"]
            torch.set_default_dtype(getattr(torch, message["dtype"]))
        with reproducible(message["threads"]):
            job = own or Job.loads(payload)
            job.publish_main()
            Worker(number, link, job, quiet=own is not None).run()
    except HubGone:
        raise
    except GroupBroken:
        with suppress(HubGone):
            link.send({"op": "broken"})
            link.receive(ORDERS_SECONDS)
        raise
    except (Exception, SystemExit) as error:
        summary, text, pickled = describe_exception(error)
        if own is None:
            # Before telling the hub, for it may end this process at once.
            print(text, end="", file=sys.stderr, flush=True)
        with suppress(HubGone):
            link.send({"op": "failed", "summary": summary, "traceback": text}, pickled)
        raise
    finally:
        link.close()


def _find_modules(path: list[str]) -> None:
    """Make importable what is importable in the driver: modules beside the script above all."""
    sys.path[:] = path + [entry for entry in sys.path if entry not in path]


def main() -> int:
    """The entry of a worker process; how to find the hub is in the environment. Returns the exit code."""
    number = int(os.environ["DLI_WORKER_NUMBER"])
    try:
        serve(number, os.environ["DLI_HUB_ADDRESS"], os.environ["DLI_HUB_KEY"])
    except (HubGone, GroupBroken) as error:
        print(f"worker {number} ends: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit):
        return 1  # said already, to the hub and on stderr
    return 0


if __name__ == "__main__":
    sys.exit(main())
