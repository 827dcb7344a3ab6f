"""The addresses that the server connects to when users name them."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import PATIENCE

from local_backend import network
from local_backend.forward.channel import Trouble
from local_backend.forward.rest import RestChannel
from local_backend.forward.source import SourceLine
from local_backend.forward.target import Rest


@pytest.mark.parametrize("address", [
    "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254", "2002:a9fe:a9fe::1",
    "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "100.100.100.200", "0.0.0.0", "0.1.2.3", "168.63.129.16", "192.0.0.192",
    "fd20:ce::254", "::ffff:168.63.129.16", "2002:a83f:8110::1", "64:ff9b::168.63.129.16", "::168.63.129.16",
    "::ffff:0:100.100.100.200", "64:ff9b:1::192.0.0.192", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:1a9:fe:a9fe::",
    "64:ff9b:1:1:a9:fea9:fe00::", "2001:0:a9fe:a9fe::", "fe80::1%1",
    "::", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255",
])
def test_special_addresses_are_always_refused(address: str) -> None:
    assert not network.is_permitted(address, loopback=True) and not network.is_permitted(address, loopback=False)


FORMS = (
    "{0}", "::ffff:{0}", "64:ff9b::{0}", "64:ff9b:1::{0}", "::{0}", "::ffff:0:{0}",
    "2002:{1:02x}{2:02x}:{3:02x}{4:02x}::",
)


@given(st.sampled_from([
    "169.254.0.0/16", "168.63.129.16/32", "192.0.0.192/32", "100.100.100.200/32", "224.0.0.0/4", "240.0.0.0/4",
    "127.0.0.0/8", "10.0.0.0/8", "8.8.8.0/24",
]), st.integers(0, 2**32 - 1), st.sampled_from(FORMS))
def test_each_form_of_an_address_has_the_rule_of_the_address(network_text: str, number: int, form: str) -> None:
    inside = ipaddress.ip_network(network_text)
    address = inside[number % inside.num_addresses]
    written = form.format(address, *address.packed)
    for loopback in (False, True):
        assert network.is_permitted(written, loopback) == network.is_permitted(str(address), loopback), written


@given(st.sampled_from(["169.254.169.254", "168.63.129.16", "192.0.0.192", "100.100.100.200"]),
       st.lists(st.sampled_from(["{}", "0{:o}", "0x{:x}"]), min_size=4, max_size=4), st.integers(1, 4))
def test_each_spelling_of_a_refused_address_is_refused(address: str, forms: list[str], parts: int) -> None:
    """The last part of an address may stand for several bytes."""
    numbers = [int(part) for part in address.split(".")]
    last = int.from_bytes(bytes(numbers[parts - 1:]), "big")
    host = ".".join(form.format(number) for form, number in zip(forms, [*numbers[:parts - 1], last], strict=False))
    with pytest.raises(network.AddressRefused):
        network.permitted_addresses(host, 80, loopback=True)


def test_a_dns_answer_that_changes_after_the_check_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["127.0.0.1", "169.254.169.254", "169.254.169.254"]

    def resolve(_host: str, port: int, *_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        plain = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *a, **k: (
            resolve(host, port) if host == "changing.example" else plain(host, port, *a, **k)))
        with network.connect("changing.example", port, 60, loopback=True) as found:
            assert found.getpeername()[0] == "127.0.0.1" and len(answers) == 2


def test_a_guarded_socket_connects_to_the_address_that_was_checked() -> None:
    script = """
import socket
from local_backend import network
plain, answers = socket.getaddrinfo, ["127.0.0.1", "169.254.169.254", "169.254.169.254"]
def resolve(host, port, *more, **named):
    return plain(answers.pop(0) if host == "changing.example" else host, port, *more, **named)
socket.getaddrinfo = resolve
listening = socket.create_server(("127.0.0.1", 0))
network.guard(loopback=True)
for call in (lambda one, at: one.connect(at), lambda one, at: one.connect_ex(at)):
    try:
        one = socket.socket()
        print(call(one, ("changing.example", listening.getsockname()[1])), one.getpeername()[0])
    except network.AddressRefused:
        print("refused")
try:
    import _socket
    _socket.socket().connect(("localhost", listening.getsockname()[1]))
except network.AddressRefused:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split("\n")[:3] == ["None 127.0.0.1", "refused", "refused"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_permitted_only_with_the_loopback_option(address: str) -> None:
    assert network.is_permitted(address, loopback=True) and not network.is_permitted(address, loopback=False)


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.1.1", "93.184.216.34", "2606:4700::1", "fd12::1"])
def test_other_addresses_are_permitted(address: str) -> None:
    assert network.is_permitted(address, loopback=False)


def test_a_name_that_resolves_to_a_refused_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata service of a cloud has such a name. Other spellings of numbers are resolved, too."""
    def resolve(host: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Trouble, match="does not connect to the address"):
        RestChannel(Rest("http://metadata.example/x"), "local-1", loopback=True).send([SourceLine("f", 0, 9, {})])


@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.16689662", "0", "0x0"])
def test_other_spellings_of_a_refused_address_are_refused(host: str) -> None:
    with pytest.raises(network.AddressRefused):
        network.permitted_addresses(host, 80, loopback=True)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost"])
def test_other_spellings_of_loopback_need_the_loopback_option(host: str) -> None:
    assert network.permitted_addresses(host, 80, loopback=True)
    with pytest.raises(network.AddressRefused):
        network.permitted_addresses(host, 80, loopback=False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has sockets of netlink")
def test_a_guarded_process_connects_only_to_permitted_addresses() -> None:
    """The guard holds for every library and every redirect. It cannot be removed, so the test uses its own process."""
    script = """
import os, socket, sys
from local_backend import network
listening = socket.create_server(("127.0.0.1", 0))
network.guard(loopback=sys.argv[1] == "True")
for address in (listening.getsockname(), ("localhost", listening.getsockname()[1]), ("169.254.169.254", 80)):
    try:
        socket.socket().connect(address)
        print("connected")
    except network.AddressRefused:
        print("refused")
print("AWS_SECRET_ACCESS_KEY" in os.environ, "PATH" in os.environ)
"""
    for loopback, seen in ((True, ["connected", "connected", "refused", "False", "True"]),
                           (False, [*["refused"] * 3, "False", "True"])):
        done = subprocess.run([sys.executable, "-c", script, str(loopback)], check=True, capture_output=True, text=True,
                              env={**os.environ, "AWS_SECRET_ACCESS_KEY": "of the server"})
        assert done.stdout.split() == seen


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(network, "permitted_addresses", lambda *_: ["127.0.0.2", "127.0.0.1"])
        with network.connect("two.example", port, 60, loopback=True) as found:
            assert found.getpeername() == ("127.0.0.1", port)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has sockets of netlink")
def test_a_guarded_process_connects_only_to_permitted_addresses_and_has_no_credentials(tmp_path: Path) -> None:
    """In processes of their own, because a guard cannot be removed."""
    script = (
        "import os, socket, sys\n"
        "from local_backend import network\n"
        "network.guard(sys.argv[1] == 'loopback')\n"
        "print('AWS_SECRET_ACCESS_KEY' in os.environ)\n"
        "for family, address in ((socket.AF_UNIX, sys.argv[2]), (socket.AF_INET, ('127.0.0.1', int(sys.argv[3]))),\n"
        "                        (socket.AF_INET, ('169.254.169.254', 80)), (socket.AF_NETLINK, (0, 0))):\n"
        "    try:\n"
        "        with socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else -1) as s:\n"
        "            s.connect(address)\n"
        "        print('connected')\n"
        "    except network.AddressRefused:\n"
        "        print('refused')\n"
    )
    path = str(tmp_path / "socket")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(path)
        local.listen()
        seen = {}
        for asked in ("loopback", "none"):
            done = subprocess.run(
                [sys.executable, "-c", script, asked, path, str(server.getsockname()[1])], text=True,
                capture_output=True, timeout=PATIENCE, check=True, env={**os.environ, "AWS_SECRET_ACCESS_KEY": "x"},
            )
            seen[asked] = done.stdout.split()
    assert seen == {"loopback": ["False", "connected", "connected", "refused", "connected"],
                    "none": ["False", "refused", "refused", "refused", "connected"]}
