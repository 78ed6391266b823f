# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps a dry run from uploading.

Requests that change something on another machine (POST, PUT, PATCH, DELETE) are not sent. The client gets the answer of
a server that accepted the request, so the script continues. Reads pass, also those that are POST requests: `_is_read`
has the list. This machine's own servers pass, too.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import socket
import threading
import uuid
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tonnage_hook.offline import Offline

_CHANGING = frozenset(("POST", "PUT", "PATCH", "DELETE"))
# A larger body is an upload, whatever its address looks like.
_READ_BODY = 1 << 20
# Addresses of this machine that count as another one: tests need such a host.
_REMOTE_VARIABLE = "TONNAGE_REMOTE_HOSTS"


@functools.cache
def is_here(host):
    """Whether a host is this machine. A link-local address is the metadata server of a cloud, which keeps nothing."""
    import ipaddress

    host = host.strip("[]").split("%")[0].lower()
    if host in os.environ.get(_REMOTE_VARIABLE, "").split(","):
        return False
    if host in ("", "localhost", socket.gethostname().lower()) or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified or address.is_link_local:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            # Only an address of this machine can be bound.
            trial.bind((host, 0))
            return True
    except OSError:
        return False


class Request:
    """A request that changes something, before it is sent."""

    def __init__(self, method, url, headers):
        self.method = method.upper()
        self.parts = urlsplit(url)
        self.host = (self.parts.hostname or "").lower()
        self.query = parse_qs(self.parts.query, keep_blank_values=True)
        self.headers = {_text(name).lower(): _text(value) for name, value in headers}
        self.body = Body()

    @property
    def path(self):
        return unquote(self.parts.path)


class Body:
    """The body of a request: its length and digests, and its first bytes."""

    def __init__(self):
        self.length = 0
        self.start = bytearray()
        self.md5 = hashlib.md5(usedforsecurity=False)
        # The upload in several requests that it is a part of.
        self.upload = None

    def add(self, piece):
        self.length += len(piece)
        self.md5.update(piece)
        if self.upload is not None:
            self.upload.add(piece)
        room = _READ_BODY + 1 - len(self.start)
        if room > 0:
            self.start += piece[:room]

    def whole(self):
        """All bytes of a body that is small enough to be a read's."""
        return bytes(self.start)

    def json(self):
        """The body as an object of JSON; empty if it is not one."""
        if self.length > _READ_BODY:
            return {}
        try:
            value = json.loads(bytes(self.start))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class Answer:
    def __init__(self, status, body=b"", content_type="application/json", **headers):
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = {"Date": formatdate(usegmt=True), "Content-Length": str(len(self.body))}
        if self.body:
            self.headers["Content-Type"] = content_type
        self.headers.update((name.replace("_", "-"), value) for name, value in headers.items())
        self.reason = {201: "Created", 202: "Accepted", 204: "No Content", 308: "Resume Incomplete"}.get(status, "OK")

    def encode(self):
        """The answer as a server sends it."""
        head = [f"HTTP/1.1 {self.status} {self.reason}", *(f"{name}: {value}" for name, value in self.headers.items())]
        return "\r\n".join([*head, "", ""]).encode() + self.body


def _text(value):
    return value.decode("latin-1") if isinstance(value, (bytes, bytearray)) else str(value)


def _pieces(source):
    """The bytes of a body in pieces, as a client sends them: progress bars count what is read."""
    if source is None:
        return
    if isinstance(source, str):
        yield source.encode()
    elif isinstance(source, (bytes, bytearray, memoryview)):
        yield bytes(source)
    elif hasattr(source, "read"):
        while piece := source.read(1 << 20):
            yield piece.encode() if isinstance(piece, str) else bytes(piece)
    else:
        for piece in source:
            yield piece.encode() if isinstance(piece, str) else bytes(piece)


# POST requests that read. Everything else that is not GET, HEAD or OPTIONS is suppressed.
_TOKEN_HOSTS = re.compile(
    r"(oauth2|iamcredentials|sts)\.googleapis\.com|accounts\.google\.com|metadata\.google\.internal"
    r"|login\.(microsoftonline\.com|windows\.net)|(sts|oidc|portal\.sso)\.([a-z0-9-]+\.)?amazonaws\.com"
)
_READING_PATHS = re.compile(
    r"/(token|access_token|search|_search|_msearch|_count|_mget|query|count|scroll|validate-yaml)$|/paths-info/"
)
_READING_ACTIONS = re.compile(r"(BatchGet|Describe|Get|Head|List|Query|Scan|Search|Select)[A-Z]|(Query|Scan)$")


def _is_read(request):
    """Whether a request only reads, though its method may change something."""
    if request.method != "POST" or request.body.length > _READ_BODY:
        return False
    path = request.path.rstrip("/")
    if _TOKEN_HOSTS.fullmatch(request.host) or _READING_PATHS.search(path):
        return True
    if path.endswith("/graphql"):
        query = request.body.json().get("query")
        return isinstance(query, str) and not re.search(r"\b(mutation|subscription)\b", query)
    if path.endswith("/info/lfs/objects/batch"):
        return request.body.json().get("operation") == "download"
    if "select" in request.query and _is_s3(request):
        return True
    if "amzn" in request.headers.get("content-type", "") or _is_aws(request):
        action = request.headers.get("x-amz-target", "").rpartition(".")[2]
        if not action:
            sent = parse_qs(bytes(request.body.start).decode("latin-1"))
            action = sent.get("Action", [""])[0]
        return bool(_READING_ACTIONS.match(action))
    return False


def _is_aws(request):
    return request.headers.get("authorization", "").startswith("AWS4-")


def _is_s3(request):
    if _is_aws(request):
        return re.search(r"/s3[a-z-]*/aws4_request", request.headers["authorization"]) is not None
    signed = "X-Amz-Signature" in request.query or "AWSAccessKeyId" in request.query
    return signed or re.search(r"(^|[.-])s3[.-].*amazonaws\.com$", request.host) is not None


def _is_google_storage(request):
    return request.host.endswith("storage.googleapis.com") or re.match(
        r"(/upload|/resumable/upload)?/storage/v1/b(/|$)", request.path
    )


def _is_azure(request):
    return "x-ms-version" in request.headers or re.search(r"\.(blob|dfs|file)\.core\.windows\.net$", request.host)


def _is_hub(request):
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    return request.host in (urlsplit(endpoint).hostname, "huggingface.co", "hub-ci.huggingface.co")


class Network:
    """The requests of this process."""

    def __init__(self, offline: Offline) -> None:
        self.suppress = offline.suppress
        self.passing = threading.local()
        # Uploads to Google Cloud Storage that have begun: what arrived, by the address of the session.
        self.uploads: dict[str, Any] = {}
        # The first service that applies answers.
        self.services = (
            (_is_google_storage, "Google Cloud Storage", self._answer_of_google_storage),
            (_is_azure, "Azure Storage", self._answer_of_azure),
            (_is_s3, "S3", self._answer_of_s3),
            (_is_hub, "Hugging Face Hub", self._answer_of_hub),
        )

    def may_change(self, method, host):
        """Whether a request may have to be suppressed."""
        return method.upper() in _CHANGING and not is_here(host) and not getattr(self.passing, "on", False)

    def request(self, method, url, headers, body=None):
        """A request with its body, which is read as if it was sent."""
        request = Request(method, url, headers)
        session = request.query.get("upload_id", [""])[0]
        if session in self.uploads:
            request.body.upload = self.uploads[session][2]
        for piece in _pieces(body):
            request.body.add(piece)
        return request

    def answer(self, request):
        """The answer to a request that is suppressed; None for one that is sent."""
        if _is_read(request):
            return None
        for applies, library, answer in self.services:
            if applies(request):
                break
        else:
            library, answer = "HTTP", self._answer_of_any
        # The path of a webhook is a secret, so only the host is recorded.
        self.suppress(library, f"{request.method} {request.host}")
        return answer(request)

    def _answer_of_any(self, request):
        if request.host == "hooks.slack.com":
            return Answer(200, b"ok", "text/html")
        if request.host in ("discord.com", "discordapp.com") and "/webhooks/" in request.path and not request.query:
            return Answer(204)
        if request.host in ("slack.com", "api.telegram.org"):
            return Answer(200, {"ok": True, "result": {}})
        return Answer(200, {})

    def _answer_of_s3(self, request):
        tag = f'"{request.body.md5.hexdigest()}"'
        query, more = request.query, {"x_amz_request_id": uuid.uuid4().hex[:16].upper()}

        def xml(name, inner):
            text = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{inner}</{name}>'
            return Answer(200, text.encode(), "application/xml", **more)

        if request.method == "DELETE":
            return Answer(204, **more)
        if request.method == "PUT" and "x-amz-copy-source" in request.headers:
            kind = "CopyPartResult" if "partNumber" in query else "CopyObjectResult"
            return xml(kind, f"<LastModified>2000-01-01T00:00:00.000Z</LastModified><ETag>{tag}</ETag>")
        if request.method == "PUT":
            return Answer(200, ETag=tag, **more)
        names = request.path.lstrip("/").partition("/")
        bucket = f"<Bucket>{_escape(names[0])}</Bucket><Key>{_escape(names[2] or names[0])}</Key>"
        if "uploads" in query:
            return xml("InitiateMultipartUploadResult", f"{bucket}<UploadId>{uuid.uuid4().hex}</UploadId>")
        if "uploadId" in query:
            return xml("CompleteMultipartUploadResult", f"{bucket}<ETag>{tag}</ETag>")
        if "delete" in query:
            return xml("DeleteResult", "")
        return Answer(204, ETag=tag, **more)

    def _answer_of_azure(self, request):
        more = {
            "ETag": f'"0x{uuid.uuid4().hex[:15].upper()}"',
            "Last_Modified": formatdate(usegmt=True),
            "x_ms_request_id": str(uuid.uuid4()),
            "x_ms_version": request.headers.get("x-ms-version", "2021-12-02"),
            "x_ms_client_request_id": request.headers.get("x-ms-client-request-id", ""),
            "x_ms_request_server_encrypted": "true",
        }
        if request.method == "DELETE" or "append" in request.query.get("action", ()):
            return Answer(202, **more)
        return Answer(201 if request.method == "PUT" else 200, **more)

    def _answer_of_google_storage(self, request):
        path, query = request.path, request.query
        if request.method == "DELETE":
            return Answer(204)
        bucket = re.search(r"/b/([^/]+)", path)
        bucket = bucket[1] if bucket else ""
        if "upload_id" in query:
            return self._answer_of_resumable(request, query["upload_id"][0])
        sent = request.body.json()
        if query.get("uploadType") == ["resumable"]:
            session = uuid.uuid4().hex
            name = query.get("name", [sent.get("name", "")])[0]
            self.uploads[session] = (bucket, name, _Arrived())
            address = request.parts._replace(query=f"uploadType=resumable&upload_id={session}").geturl()
            return Answer(200, {}, Location=address, X_GUploader_UploadID=session)
        size = request.body.length
        if query.get("uploadType") == ["multipart"]:
            # The metadata, the bytes of the object, and a boundary around each.
            found = re.match(
                rb"(--[^\r\n]+)\r\n.*?\r\n\r\n(\{.*?\})\r\n\1\r\n.*?\r\n\r\n", bytes(request.body.start), re.DOTALL
            )
            sent = json.loads(found[2]) if found else {}
            size -= found.end() + len(found[1]) + len("\r\n--") if found else 0
        name = query.get("name", [sent.get("name", "")])[0]
        target = re.search(r"/(?:rewriteTo|copyTo)/b/([^/]+)/o/(.+)$", path)
        if target:
            done = {"kind": "storage#rewriteResponse", "done": True, "totalBytesRewritten": "0", "objectSize": "0"}
            return Answer(200, {**done, "resource": _google_object(target[1], target[2], {})})
        if "/o" not in path:
            return Answer(200, {"kind": "storage#bucket", "id": sent.get("name", bucket), "name": bucket, **sent})
        given = re.search(r"/o/(.+)$", path)
        return Answer(200, _google_object(bucket, given[1] if given else name, {**sent, "size": str(size)}))

    def _answer_of_resumable(self, request, session):
        bucket, name, arrived = self.uploads.get(session, ("", "", _Arrived()))
        total = request.headers.get("content-range", "").rpartition("/")[2]
        if total == "*" or (total.isdecimal() and int(total) > arrived.length):
            more = {"Range": f"bytes=0-{arrived.length - 1}"} if arrived.length else {}
            return Answer(308, **more)
        self.uploads.pop(session, None)
        return Answer(200, _google_object(bucket, name, arrived.digests()))

    def _answer_of_hub(self, request):
        path, sent = request.path, request.body.json()
        root = f"{request.parts.scheme}://{request.parts.netloc}"
        if path == "/api/repos/create":
            name = "/".join(part for part in (sent.get("organization") or "user", sent.get("name", "")) if part)
            kind = sent.get("type") or "model"
            folder = "" if kind == "model" else f"{kind}s/"
            return Answer(200, {"url": f"{root}/{folder}{name}", "name": name})
        if "/preupload/" in path:
            files = [{"path": file.get("path"), "uploadMode": "regular"} for file in sent.get("files", ())]
            return Answer(200, {"files": files})
        if "/commit/" in path:
            commit = _commit_id()
            place = re.sub(r"^/api/(models/)?", "/", path).partition("/commit/")[0]
            return Answer(200, {"success": True, "commitOid": commit, "commitUrl": f"{root}{place}/commit/{commit}"})
        if path.endswith("/info/lfs/objects/batch"):
            # Objects without an action are those that the server has.
            return Answer(200, {"transfer": "basic", "objects": sent.get("objects", [])})
        return Answer(200, {})

    # ---- clients ----

    def change_http_client(self, module):
        connection = module.HTTPConnection
        put_request, send, get_response = connection.putrequest, connection.send, connection.getresponse
        network = self

        def putrequest(self, method, url, *arguments, **options):
            put_request(self, method, url, *arguments, **options)
            host = self._tunnel_host or self.host
            self._tonnage = _Held(method, url) if network.may_change(method, host) else None

        def send_or_hold(self, data):
            held = self.__dict__.get("_tonnage")
            if held is None:
                return send(self, data)
            for piece in _pieces(data):
                held.add(piece)

        def getresponse(self):
            held = self.__dict__.pop("_tonnage", None)
            if held is None:
                return get_response(self)
            secure = isinstance(self, getattr(module, "HTTPSConnection", ()))
            place = (self._tunnel_host, self._tunnel_port) if self._tunnel_host else (self.host, self.port)
            request = held.request("https" if secure else "http", *place)
            answer = network.answer(request)
            if answer is None:
                send(self, bytes(held.start))
                return get_response(self)
            self._HTTPConnection__state = module._CS_IDLE
            response = self.response_class(_FakeSocket(answer.encode()), method=request.method)
            response.begin()
            return response

        connection.putrequest, connection.send, connection.getresponse = putrequest, send_or_hold, getresponse

    def change_urllib3(self, module):
        pool = module.HTTPConnectionPool
        urlopen = pool.urlopen
        response_class = _response_of_urllib3(module)
        network = self

        @functools.wraps(urlopen)
        def urlopen_or_answer(self, method, url, body=None, headers=None, *arguments, **options):
            absolute = url if "://" in url.partition("?")[0] else f"{self.scheme}://{self._tonnage_host()}{url}"
            if not network.may_change(method, urlsplit(absolute).hostname or ""):
                return urlopen(self, method, url, body, headers, *arguments, **options)
            fields = dict(self.headers or {}) if headers is None else headers
            request = network.request(method, absolute, fields.items(), body)
            answer = network.answer(request)
            if answer is None:
                given = None if body is None else request.body.whole()
                network.passing.on = True
                try:
                    return urlopen(self, method, url, given, headers, *arguments, **options)
                finally:
                    network.passing.on = False
            preload = options.get("preload_content", True)
            return response_class(
                body=io.BytesIO(answer.body),
                headers=answer.headers,
                status=answer.status,
                reason=answer.reason,
                preload_content=preload,
                decode_content=options.get("decode_content", True),
                request_method=request.method,
            )

        def _tonnage_host(self):
            host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
            return f"{host}:{self.port}" if self.port else host

        pool._tonnage_host = _tonnage_host
        pool.urlopen = urlopen_or_answer

    def change_httpx(self, module):
        network = self
        sync, later = module.HTTPTransport.handle_request, module.AsyncHTTPTransport.handle_async_request

        def answer_to(request):
            url, headers = str(request.url), request.headers.items()
            return network.answer(network.request(request.method, url, headers, request.content))

        def response_to(answer):
            return module.Response(answer.status, headers=answer.headers, content=answer.body)

        def handle_request(self, request):
            if not network.may_change(request.method, request.url.host):
                return sync(self, request)
            # A body that was read can be sent all the same.
            request.read()
            answer = answer_to(request)
            return sync(self, request) if answer is None else response_to(answer)

        async def handle_async_request(self, request):
            if not network.may_change(request.method, request.url.host):
                return await later(self, request)
            await request.aread()
            answer = answer_to(request)
            return await later(self, request) if answer is None else response_to(answer)

        module.HTTPTransport.handle_request = handle_request
        module.AsyncHTTPTransport.handle_async_request = handle_async_request

    def change_aiohttp(self, module):
        network = self
        session = module.ClientSession
        send = session._request

        async def request_or_answer(self, method, str_or_url, **options):
            url = self._build_url(str_or_url)
            if not network.may_change(method, url.host or ""):
                return await send(self, method, str_or_url, **options)
            if options.get("params"):
                url = url.update_query(options["params"])
            given = dict(self.headers)
            given.update(options.get("headers") or {})
            data = options.get("data")
            if options.get("json") is not None:
                data = json.dumps(options["json"])
            request = network.request(method, str(url), given.items())
            used_up = await _read_async(request.body, data)
            answer = network.answer(request)
            if answer is None:
                if used_up:
                    options["data"] = request.body.whole()
                return await send(self, method, str_or_url, **options)
            kept = {name: options[name] for name in ("raise_for_status", "timeout") if name in options}
            response = await send(self, method, await _respond_once(answer), allow_redirects=False, **kept)
            response._url = response._real_url = url
            return response

        session._request = request_or_answer

    def change_smtplib(self, module):
        network = self
        for name in ("SMTP", "SMTP_SSL", "LMTP"):
            mail = getattr(module, name, None)
            if mail is None:
                continue
            _change_mail(network, mail)


def _change_mail(network, mail):
    connect, replace = mail.connect, {}

    def connect_or_hold(self, host="localhost", port=0, *arguments, **options):
        self._tonnage = None if is_here(host.partition(":")[0] or "localhost") else host
        if self._tonnage is None:
            return connect(self, host, port, *arguments, **options)
        self._host = host
        return 220, b"ready"

    def answered(name, answer):
        real = getattr(mail, name)

        @functools.wraps(real)
        def call(self, *arguments, **options):
            host = self.__dict__.get("_tonnage")
            if host is None:
                return real(self, *arguments, **options)
            if name == "sendmail":
                network.suppress("SMTP", f"sendmail {host}")
            return (221, b"bye") if arguments[:1] == ("QUIT",) else answer

        return call

    answers = {"ehlo": (250, b"ok"), "helo": (250, b"ok"), "starttls": (220, b"ok"), "login": (235, b"ok")}
    answers.update(sendmail={}, quit=(221, b"bye"), noop=(250, b"ok"), rset=(250, b"ok"), docmd=(250, b"ok"))
    for name, answer in answers.items():
        replace[name] = answered(name, answer)
    mail.connect = connect_or_hold
    for name, call in replace.items():
        setattr(mail, name, call)


class _Held:
    """A request of `http.client` that is not sent yet."""

    def __init__(self, method, url):
        self.method = method
        self.url = url
        self.start = bytearray()
        self.body = Body()
        self.in_body = False

    def add(self, piece):
        if len(self.start) <= 2 * _READ_BODY:
            self.start += piece
        if self.in_body:
            self.body.add(piece)
        elif (end := self.start.find(b"\r\n\r\n")) >= 0:
            self.in_body = True
            self.body.add(bytes(self.start[end + 4 :]))

    def request(self, scheme, host, port):
        lines = bytes(self.start).partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        url = self.url if "://" in self.url.partition("?")[0] else f"{scheme}://{host}:{port}{self.url}"
        request = Request(self.method, url, headers)
        request.body = self.body
        return request


class _FakeSocket:
    def __init__(self, data):
        self.data = data

    def makefile(self, *_):
        return io.BytesIO(self.data)


class _Arrived:
    """The parts of an upload in pieces that have arrived."""

    def __init__(self):
        self.length = 0
        self.md5 = hashlib.md5(usedforsecurity=False)
        try:
            import google_crc32c

            self.crc = google_crc32c.Checksum()
        except ImportError:
            self.crc = None

    def add(self, piece):
        self.length += len(piece)
        self.md5.update(piece)
        if self.crc is not None:
            self.crc.update(piece)

    def digests(self):
        import base64

        found = {"size": str(self.length), "md5Hash": base64.b64encode(self.md5.digest()).decode()}
        if self.crc is not None:
            found["crc32c"] = base64.b64encode(self.crc.digest()).decode()
        return found


def _google_object(bucket, name, more):
    generation = "1000000000000000"
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{generation}",
        "bucket": bucket,
        "generation": generation,
        "metageneration": "1",
        "storageClass": "STANDARD",
        **more,
        "name": name,
    }


def _escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _commit_id():
    return hashlib.sha1(uuid.uuid4().bytes, usedforsecurity=False).hexdigest()


def _is_whole(body):
    return isinstance(body, (bytes, bytearray, memoryview, str)) or hasattr(body, "read")


def _response_of_urllib3(module):
    return getattr(module, "HTTPResponse", None) or __import__("urllib3.response").response.HTTPResponse


async def _read_async(body, data):
    """Reads the body of a request; whether it cannot be read again."""
    if hasattr(data, "__aiter__"):
        async for piece in data:
            body.add(bytes(piece))
    elif _is_whole(data):
        for piece in _pieces(data):
            body.add(piece)
    elif isinstance(data, dict):
        from urllib.parse import urlencode

        body.add(urlencode(data).encode())
    return hasattr(data, "__aiter__") or hasattr(data, "read")


async def _respond_once(answer):
    """A server of this machine that gives one answer; its address. A response can only be made by a connection."""
    import asyncio

    async def respond(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.encode())
        await writer.drain()
        writer.close()
        server.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    return "http://{}:{}/".format(*server.sockets[0].getsockname())
