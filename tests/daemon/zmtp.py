# SPDX-License-Identifier: Apache-2.0
"""A subscriber to kvcache-events without pyzmq and msgpack: ZMTP 3.0 (SUB and REQ over TCP) and a decoder of msgpack."""

import socket
import struct
import time


class Peer:
    """A socket of type SUB or REQ that is connected to one endpoint."""

    def __init__(self, port, kind, timeout=20.0):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout)
        self.sock.sendall(b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        greeting = self._exactly(64)
        assert greeting[0] == 0xff and greeting[10] >= 3 and greeting[12:16] == b"NULL"
        self._send_frame(4, b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind.encode())
        flags, body = self._frame()
        assert flags & 4 and body.startswith(b"\x05READY")
        if kind == "SUB":
            self._send_frame(0, b"\x01")

    def close(self):
        self.sock.close()

    def _exactly(self, n):
        data = b""
        while len(data) < n:
            part = self.sock.recv(n - len(data))
            if not part:
                raise ConnectionError("the publisher closed the connection")
            data += part
        return data

    def _send_frame(self, flags, body):
        size = bytes([len(body)]) if len(body) < 256 else struct.pack(">Q", len(body))
        self.sock.sendall(bytes([flags | (2 if len(body) > 255 else 0)]) + size + body)

    def _frame(self):
        flags = self._exactly(1)[0]
        size = struct.unpack(">Q", self._exactly(8))[0] if flags & 2 else self._exactly(1)[0]
        return flags, self._exactly(size)

    def receive(self):
        """The parts of the next message."""
        parts = []
        while True:
            flags, body = self._frame()
            if flags & 4:
                continue
            parts.append(body)
            if not flags & 1:
                return parts

    def has_message(self, seconds):
        """Whether a message begins to arrive in that time."""
        self.sock.settimeout(seconds)
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False
        finally:
            self.sock.settimeout(20.0)

    def request(self, body):
        self._send_frame(1, b"")
        self._send_frame(0, body)


def unpack(data):
    """The value of a msgpack text that has nothing behind it."""
    value, at = _value(data, 0)
    assert at == len(data)
    return value


def _value(d, at):
    tag, at = d[at], at + 1
    if tag < 0x80:
        return tag, at
    if tag < 0x90:
        return _map(d, at, tag & 15)
    if tag < 0xa0:
        return _array(d, at, tag & 15)
    if tag < 0xc0:
        return d[at:at + (tag & 31)].decode(), at + (tag & 31)
    if tag == 0xc0:
        return None, at
    if tag == 0xc4:
        return bytes(d[at + 1:at + 1 + d[at]]), at + 1 + d[at]
    if tag == 0xcb:
        return struct.unpack_from(">d", d, at)[0], at + 8
    if tag == 0xce:
        return struct.unpack_from(">I", d, at)[0], at + 4
    if tag == 0xd9:
        return d[at + 1:at + 1 + d[at]].decode(), at + 1 + d[at]
    if tag == 0xdd:
        return _array(d, at + 4, struct.unpack_from(">I", d, at)[0])
    raise ValueError(f"tag {tag:#x}")


def _array(d, at, n):
    values = []
    for _ in range(n):
        value, at = _value(d, at)
        values.append(value)
    return values, at


def _map(d, at, n):
    values = {}
    for _ in range(n):
        key, at = _value(d, at)
        values[key], at = _value(d, at)
    return values, at


END = 2**64 - 1


class Subscriber:
    """An index of what the daemon holds, kept as a router keeps it: by kvcache-events alone."""

    MEDIA = {"CPU": 1, "STORAGE": 2}

    def __init__(self, port, replay_port, decode=unpack):
        self.ports, self.decode = (port, replay_port), decode
        self.last = 0
        self.held = {}  # (name of a namespace, key) -> tiers
        self.names = {}  # group -> name
        self.replays = self.batches = self.cleared = 0
        self.lags_ms = []
        self.sub = Peer(port, "SUB")
        self.replay()

    def close(self):
        self.sub.close()

    def reconnect(self):
        self.sub.close()
        self.sub = Peer(self.ports[0], "SUB")

    def take(self, payload):
        ts, events = self.decode(payload)
        self.batches += 1
        if events:
            self.lags_ms.append((time.time() - ts) * 1000)
        for e in events:
            if e["type"] == "AllBlocksCleared":
                self.held, self.names = {}, {}
                self.cleared += 1
                continue
            assert e["locality"] == "LOCAL" and len(e["block_hashes"]) > 0
            if "ownership" in e:
                self.names[e["group_idx"]] = e["ownership"]
            for key in e["block_hashes"]:
                place, bit = (e["group_idx"], key), self.MEDIA[e["medium"]]
                if e["type"] == "BlockStored":
                    assert e["parent_block_hash"] is None and e["token_ids"] == [] and e["lora_id"] is None
                    self.held[place] = self.held.get(place, 0) | bit
                else:
                    assert e["type"] == "BlockRemoved"
                    self.held[place] = self.held.get(place, 0) & ~bit

    def replay(self):
        """Asks for the batches behind the last one, as vLLM's subscribers do after a gap."""
        peer = Peer(self.ports[1], "REQ")
        try:
            peer.request(struct.pack(">Q", self.last + 1))
            self.replays += 1
            while True:
                empty, number, payload = peer.receive()
                number, = struct.unpack(">Q", number)
                assert empty == b""
                if number == END:
                    assert payload == b""
                    return
                self.take(payload)
                self.last = max(self.last, number)
        finally:
            peer.close()

    def read(self, seconds):
        """Reads until nothing comes for that long. Heartbeats come once a second."""
        while self.sub.has_message(seconds):
            topic, number, payload = self.sub.receive()
            number, = struct.unpack(">Q", number)
            assert topic == b""
            if number <= self.last:
                continue
            if number > self.last + 1:
                self.replay()
            if number > self.last:
                self.take(payload)
                self.last = number

    def by_name(self):
        """{name of a namespace: {key: tiers}} of the chunks on disk."""
        found = {}
        for (group, key), tiers in self.held.items():
            if tiers & 2:
                found.setdefault(self.names[group], {})[key] = tiers
        return found
