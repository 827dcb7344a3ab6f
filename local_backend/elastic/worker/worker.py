"""A worker process: connects to the hub of its job, receives the job, trains its shards, and follows the hub's orders.

The main script does not run here. Its functions and classes arrive by value; modules beside it are importable.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from local_backend.elastic import faults
from local_backend.elastic.collective import group
from local_backend.elastic.data.loading import LoaderLost
from local_backend.elastic.data.seeding import own_generators, seed_everything
from local_backend.elastic.errors import Dismissed, HubGone
from local_backend.elastic.plan import derive_seed
from local_backend.elastic.script import captured, main_module
from local_backend.elastic.script.job import TrainingJob, describe_exception
from local_backend.elastic.script.open_files import flush_all
from local_backend.elastic.script.surroundings import reproducible
from local_backend.elastic.state.replica import result_of
from local_backend.elastic.worker.control import Link
from local_backend.elastic.worker.member import take_part
from local_backend.elastic.worker.preparation import Terms


def serve(number: int, address: str, key: str, own: TrainingJob | None = None) -> None:
    """Run worker `number` of the hub at `address`. `own`: the job, if this is the driver's process.

    Prints an exception on stderr (only in a worker process), sends it to the hub, and then raises it. HubGone and
    LoaderLost are not sent to the hub, and HubGone is not printed.
    """
    link = Link(number, address, key)
    job = own
    try:
        welcome, payload = link.receive()
        if own is None:
            _find_modules(welcome["path"])
            # Modules beside the script may parse the command line when they are imported.
            sys.argv[:] = welcome["argv"]
            captured.apply(welcome["script"])
            faults.arm(number, os.environ)
            faults.at("starting")
        terms = Terms(**welcome["terms"])
        exact = terms.mode == "exact"
        with reproducible(welcome["threads"], exact), captured.around_training(welcome["script"]["autocast"]):
            if own is None:
                # Modules of the user may draw random numbers when they are imported.
                seed_everything(derive_seed(terms.seed, 7))
                main_module.install()
            job = own or TrainingJob.loads(payload)
            job.publish_main()
            with own_generators(job.beginnings):
                take_part(number, link, job, terms, quiet=own is not None)
    except HubGone:
        raise
    except LoaderLost as error:
        if own is None:
            # Printed before the connection ends, because the hub then ends this process at once.
            print(f"worker {number} ends: {error}", file=sys.stderr, flush=True)
        raise
    except (Exception, SystemExit) as error:
        summary, text, pickled = describe_exception(error)
        if own is None:
            # Printed before the hub gets the exception, because the hub may end this process at once.
            print(text, end="", file=sys.stderr, flush=True)
        with suppress(HubGone):
            message = {"op": "failed", "summary": summary, "traceback": text, "exception": len(pickled)}
            link.send(message, pickled + _trained(None if own is not None else job))
        raise
    finally:
        link.close()


def _trained(job: TrainingJob | None) -> bytes:
    """Return the result of the training so far, empty if there is none.

    A script that catches the exception finds this result, as it does without workers.
    """
    with suppress(Exception):
        return b"" if job is None else result_of(job)
    return b""


def _find_modules(path: list[str]) -> None:
    """Make importable all modules that are importable in the driver, above all the modules beside the script.

    A relative entry means two folders: one in the directory in which the script started, and one in the directory that
    the script has entered.
    """
    here = os.getcwd()
    both = [folder for entry in path for folder in dict.fromkeys((os.path.join(here, entry) if entry else here, entry))]
    sys.path[:] = both + [entry for entry in sys.path if entry not in both]


def main() -> NoReturn:
    """Run a worker process. The environment says how to find the hub. Does not return.

    Registered exit functions run, and written data is flushed to files. But the interpreter does not shut down: that
    takes a second or more, during which the slot is not free and torch's threads may fail.
    """
    code = _run()
    try:
        atexit.unregister(group.leave)
        atexit._run_exitfuncs()
        group.leave(forming=0.0)
        flush_all()
    finally:
        os._exit(code)


def _run() -> int:
    """Run the worker that the environment describes. Return the exit code."""
    number = int(os.environ["DLI_WORKER_NUMBER"])
    try:
        serve(number, os.environ["DLI_HUB_ADDRESS"], os.environ["DLI_HUB_KEY"])
    except Dismissed:
        return 0  # no message, because it would follow the line that says why the job is over
    except HubGone as error:
        print(f"worker {number} ends: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit):
        return 1  # `serve` has already reported the error
    return 0


if __name__ == "__main__":
    main()
