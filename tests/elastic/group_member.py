"""A member process for test_group.py: it reads orders on stdin, one JSON object per line, and answers on stdout.

The test is the hub: it passes on the values that members publish.
"""

import json
import signal
import sys
import threading

import torch

from local_backend.elastic.collective.group import Formation, Interrupted
from local_backend.elastic.errors import GroupBroken

printing = threading.Lock()
formations = {}
revoked = set()
ended = threading.Event()
ready = threading.Condition()
orders = []


def say(**message):
    with printing:
        print(json.dumps(message), flush=True)


def listen():
    """Run the control thread: handle values and revocations at once, and queue all other orders."""
    for line in sys.stdin:
        order = json.loads(line)
        generation = order.get("generation")
        if order["op"] == "value":
            formations[generation].deliver(order["key"], bytes.fromhex(order["value"]))
        elif order["op"] == "revoke":
            revoked.add(generation)
        elif order["op"] == "abandon":
            formations[generation].abandon()
        elif order["op"] == "form":
            formations[generation] = Formation(
                generation,
                order["rank"],
                order["size"],
                torch.device("cpu"),
                lambda key, value, g=generation: say(op="value", generation=g, key=key, value=value.hex()),
                lambda g=generation: say(op="formed", generation=g),
            )
        with ready:
            orders.append(order)
            ready.notify()
    ended.set()
    with ready:
        orders.append({"op": "end"})
        ready.notify()


def next_order():
    with ready:
        ready.wait_for(lambda: orders)
        return orders.pop(0)


def collectives(group, elements):
    """Run checked collectives until the group breaks or this member is revoked."""
    chunk = torch.full((elements,), float(group.rank))
    gathered = torch.empty(group.size * elements)
    total = torch.empty(elements)
    everyone = torch.arange(float(group.size)).repeat_interleave(elements)
    rounds = 0
    while True:
        if ended.is_set() or group.generation in revoked:
            # A wait alone may not raise: between members that keep up with each other it is always short.
            raise Interrupted("this member is called away")
        group.all_to_all(gathered, chunk.repeat(group.size), [elements] * group.size, [elements] * group.size)
        assert torch.equal(gathered, everyone)
        group.all_gather(gathered, chunk)
        assert torch.equal(gathered, everyone)
        total.fill_(1.0)
        group.all_reduce_start(total).wait()
        assert (total == group.size).all()
        rounds += 1
        if rounds == 3:
            say(op="busy", generation=group.generation)


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=listen, daemon=True).start()
    old = None
    while True:
        order = next_order()
        generation = order.get("generation")
        if order["op"] == "enter":
            try:
                group = formations[generation].result(lambda g=generation: g in revoked or ended.is_set())
                group.all_gather(torch.empty(group.size), torch.ones(1))
                if old is not None:
                    old.drop()
                old = group
                collectives(group, order["elements"])
            except (Interrupted, GroupBroken) as error:
                say(op="out", generation=generation, kind=type(error).__name__)
        elif order["op"] == "end":
            return


if __name__ == "__main__":
    main()
