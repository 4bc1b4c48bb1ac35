#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small S3 for tests, with all faults of a bad server. Listens on 127.0.0.1, prints its port, and ends when its stdin closes.

    s3-server.py [--tls CERTIFICATE KEY]
    s3-server.py --self-test

Objects are in memory. Every request's signature is verified, by code independent of libcurl. The last part of an object's name selects its
behaviour: "hang", "cut", ..., or "status-503-SlowDown"; any other name is an ordinary object."""

import hashlib
import hmac
import itertools
import socket
import ssl
import sys
import threading

KEYS = {  # secret, session token
    "AKIATEST": ("test-secret/with+signs", None),
    "AKIAOTHER": ("other-secret", None),
    "AKIATOKEN": ("token-secret", "a-token/with+signs=="),
}
REGION = "test-region-1"

lock = threading.Lock()
objects, seen = {}, {}
connections = itertools.count(1)
n_connections = 0


def sign(secret, region, method, path, headers, signed):
    """Returns the SigV4 signature of a request without a query, as in AWS's documentation."""
    date = headers["x-amz-date"]
    canonical = "\n".join([method, path, "", *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in signed), "",
                           ";".join(signed), headers["x-amz-content-sha256"]])
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


def refused(method, path, headers, body):
    """Returns None, or the code of the reason for refusing the request."""
    try:
        scheme, rest = headers["authorization"].split(" ", 1)
        fields = dict(field.strip().split("=", 1) for field in rest.split(","))
        access, _, region, service, end = fields["Credential"].split("/")
        signed = fields["SignedHeaders"].split(";")
    except (KeyError, ValueError):
        return "AccessDenied"
    if (scheme, region, service, end) != ("AWS4-HMAC-SHA256", REGION, "s3", "aws4_request"):
        return "AuthorizationHeaderMalformed"
    if access not in KEYS:
        return "InvalidAccessKeyId"
    secret, token = KEYS[access]
    if headers.get("x-amz-security-token") != token:
        return "InvalidToken"
    must = {"host", "x-amz-date", "x-amz-content-sha256"} | {name for name in headers if name.startswith("x-amz-")}
    if not must <= set(signed) or signed != sorted(signed):
        return "AccessDenied"
    if sign(secret, region, method, path, headers, signed) != fields["Signature"]:
        return "SignatureDoesNotMatch"
    claimed = headers["x-amz-content-sha256"]
    if claimed != "UNSIGNED-PAYLOAD" and claimed != hashlib.sha256(body).hexdigest():
        return "XAmzContentSHA256Mismatch"
    return None


class Connection:
    def __init__(self, sock):
        self.sock = sock
        self.file = sock.makefile("rb")

    def run(self):
        try:
            while self.one():
                pass
        except (OSError, ValueError):
            pass
        finally:
            self.sock.close()

    def send(self, data):
        self.sock.sendall(data)

    def answer(self, status, body=b"", headers=(), length=None):
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body) if length is None else length}", *headers]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        return True

    def error(self, status, code):
        body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>secret? no</Message></Error>'.encode()
        return self.answer(status, body, ["Content-Type: application/xml"])

    def hang(self):
        while self.sock.recv(65536):  # until the client closes the connection
            pass
        return False

    def one(self):
        line = self.file.readline()
        if not line:
            return False
        method, path, _ = line.decode().split()
        headers = {}
        while (line := self.file.readline().decode().strip()):
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()
        how = path.rsplit("/", 1)[-1]
        with lock:
            seen[method, path] = times = seen.get((method, path), 0) + 1
        if how == "hang-continue":
            return self.hang()
        if headers.get("expect", "").lower() == "100-continue" and how not in ("no-continue", "closes-later"):
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.file.read(int(headers.get("content-length", 0)))
        why = refused(method, path, headers, body)
        if why:
            return self.error(400 if why == "AuthorizationHeaderMalformed" else 403, why)
        bucket = path.split("/")[1]
        if bucket != "bucket":
            return self.error(404, "NoSuchBucket")
        return self.behave(how, times, method, path, headers, body)

    def behave(self, how, times, method, path, headers, body):
        conditional = headers.get("if-none-match") == "*"
        if how == "hang":
            return self.hang()
        if how == "close":
            return False
        if how == "garbage":
            self.send(b"\x00\xff no HTTP at all\r\n\r\n" * 100)
            return False
        if how.startswith("status-"):
            _, status, *code = how.split("-")
            return self.error(int(status), code[0]) if code else self.answer(int(status))
        if how == "redirect":
            return self.answer(307, headers=["Location: http://127.0.0.1:9/elsewhere"])
        if how == "error-200":
            return self.error(200, "InternalError")
        if how == "long-code":
            return self.error(403, "A" * 5000)
        if how == "odd-code":
            return self.error(403, "x\r\nno <b>code</b>")
        if how == "huge-error":
            self.send(b"HTTP/1.1 500 X\r\nContent-Length: 100000000000\r\n\r\n")
            while True:
                self.send(b"x" * 65536)
        if how == "huge-headers":
            self.send(b"HTTP/1.1 200 X\r\n")
            while True:
                self.send(b"X-Filler: " + b"x" * 10000 + b"\r\n")
        if how in ("no-condition-501", "no-condition-400") and conditional:
            return self.error(int(how[-3:]), "NotImplemented")
        if how == "no-condition-argument" and conditional:
            return self.error(400, "InvalidArgument")
        if how == "times-out-once" and method == "PUT" and times == 1:
            return self.error(400, "RequestTimeout")
        if how == "closes-later" and method == "PUT" and times % 2 == 0:
            return False  # a kept connection that is closed when it is used again
        if method == "PUT":
            with lock:
                if conditional and path in objects and not how.startswith("no-condition"):
                    return self.error(412, "PreconditionFailed")
                objects[path] = body
            return self.answer(200, headers=['ETag: "x"'])
        if method == "DELETE":
            with lock:
                objects.pop(path, None)
            return self.answer(204)
        if how == "n-connections":
            return self.answer(200, f"{n_connections:08}".encode())
        if how == "n-requests":
            return self.answer(200, f"{sum(n for (_, p), n in seen.items() if p == path.rsplit('/', 1)[0]):08}".encode())
        with lock:
            whole = objects.get(path)
        return self.get(how, whole, headers)

    def get(self, how, whole, headers):
        if whole is None:
            return self.error(404, "NoSuchKey")
        first, last = (int(n) for n in headers["range"].removeprefix("bytes=").split("-"))
        if first >= len(whole) and how == "empty-as-rgw":
            return self.error(416, "InvalidRange")
        if first >= len(whole):
            return self.answer(416, headers=[f"Content-Range: bytes */{len(whole)}"])
        part = whole[first:last + 1]
        of = [f"Content-Range: bytes {first}-{first + len(part) - 1}/{len(whole)}"]
        if how == "no-range":
            return self.answer(200, whole)
        if how == "endless":  # 200, and more bytes than requested
            self.send(b"HTTP/1.1 200 X\r\nContent-Length: 100000000000\r\n\r\n" + whole)
            while True:
                self.send(b"x" * 65536)
        if how == "chunked":
            self.send(f"HTTP/1.1 206 X\r\nTransfer-Encoding: chunked\r\n{of[0]}\r\n\r\n".encode())
            for i in range(0, len(part), 1000):
                piece = part[i:i + 1000]
                self.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.send(b"0\r\n\r\n")
            return True
        if how == "hang-body":
            self.answer(206, part[:len(part) // 2], of, len(part))
            return self.hang()
        if how == "cut":
            self.answer(206, part[:len(part) // 2], of, len(part))
            return False
        if how == "short":  # complete for HTTP, but shorter than Content-Range
            return self.answer(206, part[:-10], of)
        if how == "long":
            return self.answer(206, part + b"x" * 5000, of)
        if how == "no-size":
            return self.answer(206, part, ["Content-Range: bytes 0-1/*"])
        if how == "odd-size":
            return self.answer(206, part, ["Content-Range: bytes 0-1/99999999999999999999999"])
        if how == "slow":
            self.send(f"HTTP/1.1 206 X\r\nContent-Length: {len(part)}\r\n{of[0]}\r\n\r\n".encode())
            for i in range(0, len(part), 500):
                self.send(part[i:i + 500])
            return True
        return self.answer(206, part, of)


def self_test():
    """Checks the example of AWS's documentation, "GET Object"."""
    headers = {"host": "examplebucket.s3.amazonaws.com", "range": "bytes=0-9", "x-amz-date": "20130524T000000Z",
               "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    got = sign("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "GET", "/test.txt", headers, sorted(headers))
    assert got == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", got


def main():
    global n_connections
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    context = None
    if sys.argv[1:2] == ["--tls"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    print(listener.getsockname()[1], flush=True)

    def accept():
        global n_connections
        while True:
            sock, _ = listener.accept()
            n_connections = next(connections)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    def serve(sock):
        try:
            Connection(context.wrap_socket(sock, server_side=True) if context else sock).run()
        except OSError:
            sock.close()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
