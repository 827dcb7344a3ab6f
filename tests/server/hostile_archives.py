"""Makes hostile and damaged archives."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator

GOOD = ("d/train.py", b"print(1)\n")


def block(
    name: bytes, size: bytes = b"00000000000\0", kind: bytes = b"0", *, link: bytes = b"", prefix: bytes = b""
) -> bytes:
    """Return one header block, built byte by byte, with a correct checksum."""
    head = bytearray(512)
    for at, content in (
        (0, name[:100]), (100, b"0000644\0"), (108, b"0000000\0"), (116, b"0000000\0"), (124, size),
        (136, b"00000000000\0"),
        (148, b" " * 8), (156, kind), (157, link[:100]), (257, b"ustar\x0000"), (345, prefix[:155]),
    ):
        head[at : at + len(content)] = content
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def member(name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644,
           **pax: str) -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode, info.pax_headers = kind, link, mode, pax
        info.size = len(content) if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(content) if info.size else None)

    return add


def pack(*members: Callable[[tarfile.TarFile], None], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        member(*GOOD)(archive)
        for add in members:
            add(archive)
    return gzip.compress(buffer.getvalue(), 1)


def raw(*blocks: bytes) -> bytes:
    return gzip.compress(block(b"d/ok.py") + b"".join(blocks) + b"\0" * 1024, 1)


def pax(records: bytes, name: bytes = b"d/x", size: bytes = b"00000000001\0") -> bytes:
    padded = records + b"\0" * (-len(records) % 512)
    return block(b"p", b"%011o\0" % len(records), b"x") + padded + block(name, size) + b"x".ljust(512, b"\0")


def record(text: bytes) -> bytes:
    length = len(text) + 3
    while len(b"%d %s\n" % (length, text)) != length:
        length += 1
    return b"%d %s\n" % (length, text)


def names() -> Iterator[tuple[str, bytes]]:
    """Yield archives with dangerous names."""
    for name in (
        "/etc/cron.d/x", "//x", "../x", "..", "a/..", "a/../../b", "d/../d/../../x", "./../x", "d/./../../x", "a/../b",
        "d/" + "../" * 40 + "tmp/x", "d/x\ny", "d/\r", "d/\x1b[31m", "d/\x7f", "d/\u202egpj.exe", "d/\u2066x",
        "d/\u2028x", "d/\x85x", "d/" + "x" * 256, "d/" + "ü" * 130,
        "d/" + "/".join(["y" * 200] * 25), "/".join(["z"] * 70),
        "/".join(["q"] * 5000), "d/\udcff",
    ):
        yield f"name {name[:40]!a}", pack(member(name))
    for folder in ("/abs", "../up", "d/../../up", "d/\nx"):
        yield f"folder {folder!a}", pack(member(folder, kind=tarfile.DIRTYPE))
    yield "name by pax", raw(pax(record(b"path=../../x")))
    yield "absolute by pax", raw(pax(record(b"path=/x")))
    yield "NUL by pax", raw(pax(record(b"path=d/a\0b")))
    yield "not UTF-8", raw(block(b"d/\xff\xfe", b"00000000001\0"), b"x".ljust(512, b"\0"))
    yield "name by prefix", raw(block(b"x", prefix=b"../.."))


def kinds() -> Iterator[tuple[str, bytes]]:
    """Yield archives with members that are neither files nor folders."""
    for kind, what in (
        (tarfile.FIFOTYPE, "fifo"), (tarfile.CHRTYPE, "character device"), (tarfile.BLKTYPE, "block device"),
        (b"Z", "unknown"), (b"V", "volume"), (b"M", "continuation"), (tarfile.GNUTYPE_SPARSE, "sparse"),
    ):
        yield what, raw(block(b"d/x", kind=kind, link=b"d/ok.py"))
    for target in ("/etc/passwd", "../..", "train.py", "."):
        yield f"link to {target}", pack(member("d/l", kind=tarfile.SYMTYPE, link=target), member("d/l/x"))
    yield "hard link out", pack(member("d/l", kind=tarfile.LNKTYPE, link="../../x"), member("d/l"))
    chain = [member("d/a", kind=tarfile.SYMTYPE, link="."), member("d/a/b", kind=tarfile.SYMTYPE, link="..")]
    yield "link chain", pack(*chain)
    keys = (b"major=1", b"minor=0", b"name=d/s", b"realsize=99999999999")
    yield "sparse by pax", raw(pax(b"".join(record(b"GNU.sparse." + key) for key in keys)))
    yield "sparse 0.1", raw(pax(record(b"GNU.sparse.map=0,1") + record(b"GNU.sparse.size=9999999999999")))


def twins() -> Iterator[tuple[str, bytes]]:
    """Yield archives in which two members have the same name on some file system."""
    for one, other in (
        ("d/a.py", "d/a.py"), ("d/a.py", "d/A.py"), ("d/stra\u00dfe", "d/STRASSE"), ("d/\u00fc", "d/u\u0308"),
        ("d/a.py", "d/./a.py"), ("d/a.py", "D/b.py"), ("d/a", "d/a/b"), ("d/a/b", "d/a"), ("d/\u212b", "d/\u00e5"),
    ):
        yield f"twins {one!a} {other!a}", pack(member(one), member(other))


def sizes() -> Iterator[tuple[str, bytes]]:
    """Yield archives with false sizes, and archives that exhaust memory or disk."""
    yield "negative size", raw(block(b"d/x", b"\xff" * 12))
    yield "negative size, large", raw(block(b"d/x", b"\xff" * 8 + b"\x00" * 3 + b"\x01"))
    yield "negative size by pax", raw(pax(record(b"size=-1024")))
    yield "size beyond all", raw(block(b"d/x", b"\x80" + b"\xff" * 11))
    yield "size beyond the end", raw(block(b"d/x", b"77777777777\0"))
    yield "size is no number", raw(block(b"d/x", b"zzzzzzzzzzz\0"))
    yield "size by pax is no number", raw(pax(record(b"size=lots")))
    yield "size by pax is huge", raw(pax(record(b"size=" + b"9" * 5000)))
    zeros = b"%011o\0" % (96 << 20), bytes((96 << 20) + 1024)
    yield "bomb of zeros", gzip.compress(block(b"d/x", zeros[0]) + zeros[1], 1)
    yield "ignored bomb", gzip.compress(block(b"d/._x", zeros[0]) + zeros[1], 1)
    yield "a million empty entries", gzip.compress(b"".join(block(b"d/%d" % n) for n in range(30_000)), 1)
    yield "one folder again and again", gzip.compress(block(b"d/", kind=b"5") * 30_000, 1)
    huge, content = b"%011o\0" % (256 << 20), gzip.compress(bytes(256 << 20), 1)
    yield "huge pax header", gzip.compress(block(b"p", huge, b"x")) + content
    yield "huge long name", gzip.compress(block(b"p", huge, b"L")) + content
    yield "chain of pax headers", raw(*[block(b"p", b"%011o\0" % 9, b"x") + b"9 a=bcde\n".ljust(512, b"\0")] * 5000)
    yield "pax record of no length", raw(pax(b"0 a=b\n"))


def harmless() -> Iterator[tuple[str, bytes]]:
    """Yield archives that some versions of Python read, ignoring invalid records, and other versions refuse."""
    yield "pax record too long", raw(pax(b"99999999 a=b\n"))
    yield "pax record without end", raw(pax(b"9" * 600))


def damaged() -> Iterator[tuple[str, bytes]]:
    """Yield damaged archives and files of other formats."""
    good = pack(member("d/big", b"y" * 300_000))
    yield "empty", b""
    yield "text", b"hello, I am no archive\n" * 100
    yield "gzip of text", gzip.compress(b"hello" * 1000)
    yield "cut gzip", good[: len(good) // 2]
    yield "flipped gzip", good[:40] + bytes([good[40] ^ 255]) + good[41:]
    yield "cut tar", gzip.decompress(good)[:100_000]
    yield "cut tar between members", gzip.decompress(good)[:1024]
    yield "cut tar, zipped again", gzip.compress(gzip.decompress(good)[:1024])
    yield "bad checksum", gzip.decompress(good)[:148] + b"000000\0 " + gzip.decompress(good)[156:]
    yield "gzip in gzip", gzip.compress(good)
    yield "only litter", gzip.compress(block(b"d/._x") + block(b".DS_Store") + bytes(1024))
    yield "only zeros", bytes(10240)
    yield "zip", b"PK\x03\x04" + bytes(1000)
    yield "bzip2", b"BZh91AY&SY" + bytes(1000)


def zip_of(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED, mode: int = 0) -> bytes:
    """Return a zip of a program and these members. `mode` is the type and the permissions of the members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, compresslevel=1) as archive:
        archive.writestr(*GOOD)
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            archive.writestr(info, content)
    return buffer.getvalue()


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    """Return an archive in which bytes are replaced, in all headers alike."""
    assert old in content and len(old) == len(new)
    return content.replace(old, new)


def zips() -> Iterator[tuple[str, bytes]]:
    """Yield hostile and damaged zips."""
    for name in ("/x", "../x", "d/../../x", "d/x\ny", "d/\x1b[31m", "d/\u202egpj.exe", "d/" + "x" * 256,
                 "/".join(["q"] * 300), "d/" + "z" * 3000):
        yield f"zip name {name[:40]!a}", zip_of((name, b"x"))
    yield "zip name with NUL", changed(zip_of(("d/a.py#.txt", b"x")), b"a.py#.txt", b"a.py\0.txt")
    yield "zip name that is not UTF-8", changed(zip_of(("d/\u00fc.py", b"x")), "\u00fc".encode(), b"\xff\xfe")
    for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK):
        yield f"zip of kind {kind:o}", zip_of(("d/l", b"/etc/passwd"), mode=kind | 0o777)
    for one, other in (("d/a", "d/a"), ("d/a", "d/A"), ("d/a", "d/a/b"), ("d/a/b", "d/a"), ("d/a/", "d/A/x")):
        yield f"zip twins {one} {other}", zip_of((one, b""), (other, b""))
    stored = zip_of(("d/big", b"y" * 300_000), method=zipfile.ZIP_STORED)
    yield "zip with a wrong checksum", changed(stored, b"y" * 300_000, b"y" * 299_999 + b"z")
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        packed = zip_of(("d/big", bytes(range(256)) * 99), method=method)
        begin = packed.index(b"d/big") + 20
        yield f"zip with damaged bytes of method {method}", packed[:begin] + b"\xff" * 40 + packed[begin + 40:]
    yield "zip of an unknown method", changed(zip_of(("d/x", b"1" * 99)), b"\x08\0", b"\x55\0")
    yield "encrypted zip", _encrypted(zip_of(("d/x", b"1" * 99)))
    yield "zip bomb of zeros", zip_of(("d/x", bytes(96 << 20)))
    yield "zip bomb by lzma", zip_of(("d/x", bytes(96 << 20)), method=zipfile.ZIP_LZMA)
    yield "zip with a wrong size", _with_size(zip_of(("d/x", bytes(8 << 20))), 8 << 20, 10)
    yield "zip of 30,000 empty entries", zip_of(*((f"d/{number}", b"") for number in range(30_000)))
    yield "cut zip", stored[:-30]
    yield "zip without members", b"PK\x03\x04" + bytes(26) + b"PK\x05\x06" + bytes(18)


def _encrypted(content: bytes) -> bytes:
    """Return a zip whose members claim to be encrypted."""
    found = bytearray(content)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = found.find(mark)
        while at >= 0:
            found[at + place] |= 1
            at = found.find(mark, at + 1)
    return bytes(found)


def _with_size(content: bytes, old: int, new: int) -> bytes:
    """Return a zip whose headers claim another unpacked size."""
    return changed(content, old.to_bytes(4, "little"), new.to_bytes(4, "little"))
