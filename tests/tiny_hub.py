"""A hub on this machine: as much of its protocol as creating, uploading, listing and downloading a model takes."""

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit


class Repository:
    def __init__(self, *, private: bool = False, **files: bytes) -> None:
        self.private, self.files = private, files

    @property
    def sha(self) -> str:
        return sha1(repr(sorted(self.files.items())).encode()).hexdigest()


class Hub(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.downloads: list[str] = []


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/api/models/").removeprefix("/")
        owner, name, *rest = path.split("/", 4)
        repository = self.server.repositories.get(f"{owner}/{name}")
        match rest:
            case _ if repository is None:
                self.answer({}, 404, {"X-Error-Code": "RepoNotFound"})
            case [] | ["revision", "main"]:
                self.answer({"id": f"{owner}/{name}", "sha": repository.sha, "private": repository.private})
            case ["revision", _]:
                self.answer({}, 404, {"X-Error-Code": "RevisionNotFound"})
            case ["tree", *_]:
                files = repository.files.items()
                self.answer([{"type": "file", "path": path, "size": len(c), "oid": _oid(c)} for path, c in files])
            case ["resolve", _, file]:
                content = repository.files[file]
                self.server.downloads += [file] * (self.command == "GET")
                self.answer(content, headers={"ETag": _oid(content), "X-Repo-Commit": repository.sha})

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        match self.path.split("/")[2:]:
            case ["validate-yaml"]:
                self.answer({"warnings": [], "errors": []})
            case ["repos", "create"]:
                asked = json.loads(body)
                name, private = f"{asked['organization']}/{asked['name']}", asked.get("visibility") == "private"
                known = name in self.server.repositories
                self.server.repositories.setdefault(name, Repository(private=private))
                self.answer({"url": f"{self.server.url}/{name}"}, 409 if known else 200)
            case ["models", _, _, "preupload", _]:
                files = json.loads(body)["files"]
                self.answer({"files": [{**f, "uploadMode": "regular", "shouldIgnore": False} for f in files]})
            case ["models", owner, name, "commit", _]:
                repository = self.server.repositories[f"{owner}/{name}"]
                for change in map(json.loads, body.splitlines()):
                    if change["key"] == "file":
                        repository.files[change["value"]["path"]] = b64decode(change["value"]["content"])
                    elif change["key"] == "deletedFile":
                        del repository.files[change["value"]["path"]]
                url = f"{self.server.url}/{owner}/{name}/commit/{repository.sha}"
                self.answer({"commitUrl": url, "commitOid": repository.sha})
            case _:
                self.answer({}, 501)

    def answer(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _oid(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()
