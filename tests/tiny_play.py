"""A tiny pipeline with random weights and a byte-level tokenizer, and a real server for it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from http.client import HTTPConnection

import tiny

from crocodil.pipeline import Crocodil, Settings
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.text.tokenizer import Tokenizer

TEXT = "def mean(values):\n    return sum(values) / len(values)\n"


@cache
def tiny_pipe() -> Crocodil:
    tokenizer = Tokenizer.train([TEXT * 3, "for value in values: print(value)"] * 2, vocab_size=290)
    special, size = tokenizer.special, len(tokenizer)
    backbone = replace(
        tiny.BACKBONE, vocab_size=size, mask_id=special.mask, eos_id=special.eos, pad_id=special.pad
    )
    return Crocodil(
        tokenizer=tokenizer,
        settings=Settings(
            length=48,
            decoding=Decoding(temperature=1.0, rule="remask by confidence"),
            drawing=Drawing(prior_steps=3, refresh_steps=2),
        ),
        demasker=tiny.demasker(replace(tiny.DEMASKER, backbone=backbone)).eval(),
        encoder=tiny.encoder(replace(tiny.ENCODER, vocab_size=size, end_id=special.eos)).eval(),
        prior=tiny.denoiser().eval(),
        conditional=tiny.denoiser(tiny.CONDITIONAL).eval(),
    )


class Client:
    """Talks to a server on this machine."""

    def __init__(self, port: int) -> None:
        self.port, self.address = port, f"http://127.0.0.1:{port}/"

    def connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=30)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self._ask("GET", path, None, headers)

    def post(self, body: object, **headers: str) -> tuple[int, dict[str, str], bytes]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask("POST", "/api/runs", content, {"Content-Type": "application/json", **headers})

    def events(self, body: object) -> list[dict]:
        """Run a request to its end."""
        status, _, content = self.post(body)
        assert status == 200, content
        return [json.loads(line[6:]) for line in content.decode().split("\n\n") if line.startswith("data: ")]

    def _ask(self, method, path, body, headers):
        connection = self.connection()
        try:
            connection.request(
                method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@contextmanager
def serving(pipe: Crocodil, name: str = "tiny", **options) -> Iterator[Client]:
    """A server in a thread, on a free port."""
    import uvicorn

    from crocodil.play.server import create_app

    listening = socket.create_server(("127.0.0.1", 0))
    app = create_app(pipe, name=name, **options)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield Client(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
