"""The playground without a browser: requests, events, the queue, the server, the exported page."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_play import TEXT, serving, tiny_pipe
from typer.testing import CliRunner

from crocodil import Crocodil, Given, Method
from crocodil.cli import app
from crocodil.play.job_queue import MAX_WAITING, JobQueue
from crocodil.play.requests import MAX_CHARACTERS, VIEWS, FieldError, Generate, defaults, parse
from crocodil.play.trace import Trace
from crocodil.play.views import answer
from crocodil.sampling.guidance import Guided

ROOT = Path(__file__).parents[2]
SMALL = {"length": 24, "calls": 4}
HARMFUL = "<|mask|></script><img src=x onerror=alert(1)>\x00\x07"


def asked(pipe: Crocodil, view: str, **values) -> list[dict]:
    events: list[dict] = []
    answer(pipe, parse({"view": view, **values}), events.append)
    return json.loads(json.dumps(events))


def of_kind(events: list[dict], kind: str, lane: str | None = None) -> list[dict]:
    return [event for event in events if event["event"] == kind and lane in (None, event.get("lane"))]


@pytest.fixture(scope="module")
def pipe():
    return tiny_pipe()


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ([], "", "JSON object"),
        ({"view": "admin"}, "view", "no such view"),
        ({"view": "generate", "seed": -1}, "seed", "greater than or equal to 0"),
        ({"view": "generate", "seed": "1; drop"}, "seed", "valid integer"),
        ({"view": "generate", "calls": 513}, "calls", "at most 512"),
        ({"view": "generate", "methods": ["base", "<b>"]}, "methods", "no method '<b>'"),
        ({"view": "generate", "methods": []}, "methods", "at least one"),
        ({"view": "generate", "shell": "ls"}, "", "not a known field"),
        ({"view": "autoencode", "text": "x" * 1_000_000}, "text", "1,000,000 characters are too many"),
        ({"view": "autoencode", "text": "\ud800"}, "text", "half of a character"),
        ({"view": "autoencode", "\ud800": 1}, "", "half of a character"),
        ({"view": "interpolate", "steps": 10}, "steps", "2 to 9"),
        ({"view": "steer", "noise": 5.0}, "noise", "up to 4"),
        ({"view": "steer", "redrawn": ["a"]}, "redrawn", "valid integer"),
    ],
)
def test_a_wrong_request_names_its_field(values, field, words):
    with pytest.raises(FieldError, match=re.escape(words)) as caught:
        parse(values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("view", "values", "field"),
    [
        ("generate", {"length": 49}, "length"),
        ("generate", {"length": 8, "calls": 9}, "calls"),
        ("complete", {**SMALL, "prefix": TEXT * 3}, "prefix"),
        ("autoencode", {"text": " \n"}, "text"),
        ("autoencode", {"text": TEXT, "registers": 7}, "registers"),
        ("interpolate", {"first": TEXT, "second": ""}, "second"),
        ("steer", {**SMALL, "redrawn": [6]}, "redrawn"),
        ("steer", {**SMALL, "noised": [-1], "noise": 1.0}, "noised"),
    ],
)
def test_a_value_that_this_model_cannot_take_names_its_field(pipe, view, values, field):
    with pytest.raises(FieldError) as caught:
        asked(pipe, view, **values)
    assert caught.value.field == field


def test_registers_are_counted_from_one_as_on_the_page(pipe):
    with pytest.raises(FieldError, match="there is no register 7: take 1 to 6"):
        asked(pipe, "steer", **SMALL, redrawn=[6])


def test_every_view_has_a_default_request():
    for view, values in defaults().items():
        assert parse(json.loads(json.dumps({"view": view, **values})))
    assert set(defaults()) == set(VIEWS)


# ---------------------------------------------------------------- events


def test_a_character_of_several_tokens_stands_at_the_last_of_them(pipe):
    special = pipe.tokenizer.special
    ids = pipe.tokenizer.encode("é!")
    trace = Trace([special.bos, *[special.mask] * 4], pipe.tokenizer)
    assert trace.first_cells() == [(position, None, "h", None) for position in range(1, 5)]
    shown = trace.changed_cells([special.bos, *ids, special.eos], [0.0, -1.0, -2.0, -0.5, -3.0])
    assert shown == [(1, "", "n", 36.8), (2, "é", "n", 13.5), (3, "!", "n", 60.7), (4, None, "n", None)]
    again = trace.changed_cells([special.bos, special.mask, *ids[1:], special.eos], [0.0] * 5)
    assert again == [(1, None, "a", None), (2, "\ufffd", "k", None)]


def text_of(events: list[dict], lane: str) -> str:
    """Replay the cells of a lane as the page does."""
    (start,) = of_kind(events, "start", lane)
    cells = {position: text for position, text, *_ in start["cells"]}
    for call in of_kind(events, "call", lane):
        cells |= {position: text for position, text, *_ in call["cells"]}
    return "".join(text or "" for _, text in sorted(cells.items()))


def test_generate_shows_every_call_of_every_method(pipe):
    events = asked(pipe, "generate", seed=3, **SMALL)
    for method in Method:
        made = pipe.generate(1, method=method, seed=3, **SMALL)
        (text,) = of_kind(events, "text", method)
        assert text["text"] == made.texts[0] == text_of(events, method)
        assert text["cost"]["nfe"] == pytest.approx(made.nfe, abs=0.01)
        assert text["cost"]["flop_nfe"] == pytest.approx(made.flop_nfe, abs=0.01)
        calls = of_kind(events, "call", method)
        assert [call["call"] for call in calls if call["refresh"]] == ([3] if method == "conwithindisc" else [])
    assert len(of_kind(events, "drawing", Method.CON_WITHIN_DISC)) == 5  # 3 steps of the prior, 2 of the refresh


def test_the_confidence_of_a_token_is_the_probability_that_the_model_gave_it(pipe):
    snapshots = []
    pipe.generate(1, method="base", length=8, calls=2, temperature=0.0, on_call=snapshots.append)
    canvas = pipe.canvas(8)
    positions = canvas.masked().nonzero()[:, 1][None]
    with torch.no_grad():
        logits = Guided(pipe.demasker)(canvas.tokens, None, positions)
    logits[:, pipe.mask_id] = -torch.inf
    expected = logits.log_softmax(dim=1).max(dim=1).values
    torch.testing.assert_close(snapshots[0].log_prob[0, 1:], expected)
    assert snapshots[0].log_prob[0, 0] == 0


def test_complete_keeps_special_tokens_and_markup_as_text(pipe):
    events = asked(pipe, "complete", prefix=HARMFUL, length=48, calls=2, methods=["base"])
    (text,) = of_kind(events, "text")
    assert text["text"].startswith(HARMFUL)
    made = pipe.generate(1, method="base", length=48, calls=2, seed=1, given=Given(prefix=HARMFUL))
    assert text["text"] == made.texts[0]


def test_autoencode_and_interpolate_tell_registers_errors_and_cuts(pipe):
    events = asked(pipe, "autoencode", text=TEXT * 3, registers=2, calls=2)
    (note,) = of_kind(events, "note")
    assert "characters are lost" in note["text"]
    assert note["kept"] == len(pipe.fitting(TEXT * 3)[0])
    (registers,) = of_kind(events, "registers")
    assert (len(registers["values"]), registers["used"]) == (6, 2)
    assert of_kind(events, "text")[0]["cer"] > 0
    events = asked(pipe, "interpolate", first=TEXT, second="x = 1", steps=3, calls=2)
    assert [(text["lane"], text["weight"]) for text in of_kind(events, "text")] == [("0", 0), ("2", 1), ("1", 0.5)]
    expected = pipe.interpolate(TEXT, "x = 1", 3, calls=2).texts
    assert {text["lane"]: text["text"] for text in of_kind(events, "text")} == dict(
        zip("012", expected, strict=True)
    )


def test_steer_changes_the_chosen_registers_alone(pipe):
    def values(**changes) -> torch.Tensor:
        return torch.tensor(of_kind(asked(pipe, "steer", **SMALL, **changes), "registers")[0]["values"])

    held, redrawn, noised = values(), values(redrawn=[1]), values(noised=[0, 2], noise=1.0)
    assert torch.equal(held, values(redraw_seed=9))
    assert (held != redrawn).any(dim=1).nonzero().flatten().tolist() == [1]
    assert (held != noised).any(dim=1).nonzero().flatten().tolist() == [0, 2]
    assert len(values(text=TEXT)) == 6


def test_a_model_without_priors_generates_with_the_base_alone(pipe):
    bare = replace(pipe, prior=None, conditional=None)
    assert of_kind(asked(bare, "generate", methods=["base"], **SMALL), "text")
    for view, field in (("generate", "methods"), ("steer", "text")):
        with pytest.raises(FieldError) as caught:
            asked(bare, view, **SMALL)
        assert caught.value.field == field


# ---------------------------------------------------------------- the queue


class Gate:
    """Work that waits until it is let through."""

    def __init__(self) -> None:
        self.open, self.begun, self.order = threading.Semaphore(0), threading.Semaphore(0), []

    def __call__(self, request, emit) -> None:
        self.begun.release()
        self.open.acquire()
        emit({"event": "text"})
        self.order.append(request.seed)


def test_jobs_take_turns_know_their_place_and_can_be_cancelled():
    gate = Gate()
    queue = JobQueue(gate, max_waiting=2)
    events: list[list[dict]] = [[], [], []]
    jobs = [queue.submit(Generate(seed=0), events[0].append)]
    gate.begun.acquire()
    jobs += [queue.submit(Generate(seed=seed), events[seed].append) for seed in (1, 2)]
    assert queue.length() == {"waiting": 2, "running": 1}
    with pytest.raises(FieldError, match="2 requests wait already"):
        queue.submit(Generate(), print)
    assert events[2] == [{"event": "queue", "ahead": 2}]
    queue.cancel(jobs[1])
    assert events[2][-1] == {"event": "queue", "ahead": 1}
    queue.cancel(jobs[0])  # it is running: it stops at its next event
    for _ in range(2):
        gate.open.release()
    gate.begun.acquire()
    while {"event": "done"} not in events[2]:
        time.sleep(0.001)
    queue.close()
    assert gate.order == [2]
    assert {"event": "text"} not in events[0]


def test_a_job_that_fails_in_any_way_does_not_stop_the_others():
    def fail_first(request, emit):
        if request.seed == 0:
            raise KeyError("missing")

    queue, events = JobQueue(fail_first), []
    for seed in (0, 1):
        queue.submit(Generate(seed=seed), events.append)
    deadline = time.monotonic() + 10
    while {"event": "done"} not in events and time.monotonic() < deadline:
        time.sleep(0.001)
    queue.close()
    assert {"event": "error", "field": "", "error": "'missing'"} in events
    assert events[-1] == {"event": "done"}


# ---------------------------------------------------------------- the server


@pytest.fixture(scope="module")
def client(pipe):
    pytest.importorskip("uvicorn", reason="the extra [play] is not installed")
    with serving(pipe) as client:
        yield client


def test_the_page_loads_nothing_from_elsewhere_and_no_site_may_frame_or_call_it(client):
    for path in ("/", "/play.css", "/draw.js", "/runs.js", "/forms.js", "/play.js"):
        status, headers, content = client.get(path)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert not re.search(rb"https?://|innerHTML|outerHTML|insertAdjacent|eval\(|document\.write", content)
    assert client.get("/", Host="evil.example")[0] == 400
    assert client.get("/..%2fserver.py")[0] == 404
    assert client.post({"view": "generate"}, Content_Type="text/plain")[0] == 415


def test_requests_that_are_too_large_or_no_json_are_refused(client):
    status, _, content = client.post(b'{"view": "' + b"x" * 1_000_000 + b'"}')
    assert (status, json.loads(content)["event"]) == (413, "error")
    for body in (b"\xff\xfe\x00", b"[" * 100_000, b"{}", b'{"view": "generate", "seed": NaN}'):
        assert client.post(body)[0] == 400
    status, _, content = client.post({"view": "autoencode", "text": "x" * (MAX_CHARACTERS + 1)})
    assert (status, json.loads(content)["field"]) == (400, "text")
    assert client.events({"view": "generate", "length": 4096})[-1]["field"] == "length"


def test_a_token_is_asked_for_when_there_is_one(pipe):
    pytest.importorskip("uvicorn", reason="the extra [play] is not installed")
    with serving(pipe, token="secret", hosts=["*"]) as client:
        assert client.get("/")[0] == 200
        for path in ("/api/model", "/api/queue"):
            assert client.get(path)[0] == client.get(path, Authorization="Bearer x")[0] == 401
            assert client.get(path, Authorization="Bearer secret", Host="any.example")[0] == 200
        assert client.post({"view": "generate"})[0] == 401


def test_two_at_once_get_their_own_texts(client, pipe):
    answers: dict[int, list[dict]] = {}

    def ask(seed: int) -> None:
        answers[seed] = client.events({"view": "generate", "seed": seed, "methods": ["base"], **SMALL})

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, events in answers.items():
        assert of_kind(events, "text")[0]["text"] == pipe.generate(1, method="base", seed=seed, **SMALL).texts[0]
        assert events[0]["event"] == "queue"
        assert events[-1] == {"event": "done"}


def test_a_closed_connection_stops_its_run(client):
    body = json.dumps({"view": "generate", "length": 48, "calls": 48, "methods": ["base"]}).encode()
    head = f"POST /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json"
    connections = []
    for _ in range(30):
        connection = socket.create_connection(("127.0.0.1", client.port))
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        connections.append(connection)
    while not json.loads(client.get("/api/queue")[2])["waiting"]:
        time.sleep(0.001)
    for connection in connections:
        connection.close()
    started_at = time.perf_counter()
    while json.loads(client.get("/api/queue")[2]) != {"waiting": 0, "running": 0}:
        assert time.perf_counter() - started_at < 5
        time.sleep(0.005)


def test_a_client_that_is_gone_before_the_stream_starts_stops_its_run(pipe):
    pytest.importorskip("starlette", reason="the extra [play] is not installed")
    from starlette.requests import ClientDisconnect
    from starlette.requests import Request as HttpRequest

    from crocodil.play.server import _Server

    gate, server = Gate(), _Server(pipe, "tiny", None)
    server.queue = JobQueue(gate)
    server.queue.submit(Generate(), lambda event: None)
    gate.begun.acquire()
    scope = {
        "type": "http", "asgi": {"spec_version": "2.4"}, "method": "POST", "path": "/api/runs",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b'{"view": "generate", "seed": 7}'}

    async def send(message):
        raise OSError("the client is gone")

    async def ask():
        response = await server.run(HttpRequest(scope, receive))
        with pytest.raises(ClientDisconnect):
            await response(scope, receive, send)

    asyncio.run(ask())
    assert server.queue.length() == {"waiting": 0, "running": 1}
    gate.open.release()
    server.queue.close()


# ---------------------------------------------------------------- the command and the exported page


def test_the_exported_page_holds_its_runs(pipe, tmp_path):
    from crocodil.play.export import export, recorded_requests
    from crocodil.play.static_page import about

    shorter = about(pipe, "tiny")
    for values in shorter["defaults"].values():
        values |= {"calls": 1} | ({"steps": 2} if "steps" in values else {})
    requests = recorded_requests(shorter)
    done = []
    export(pipe, tmp_path / "site", known=shorter, on_run=lambda *numbers: done.append(numbers))
    assert done[-1] == (len(requests) - 1, len(requests))
    script = (tmp_path / "site" / "recorded.js").read_text()
    content = json.loads(script.removeprefix("window.RECORDED = ").removesuffix(";\n"))
    assert [run["request"] for run in content["runs"]] == json.loads(json.dumps(requests))
    assert all(run["events"][-1] == {"event": "done"} for run in content["runs"])
    assert "</script" not in script.lower()
    assert (
        '<script src="recorded.js"></script>\n<script src="draw.js"' in (tmp_path / "site/index.html").read_text()
    )


def test_the_numbers_of_the_docs_are_those_of_the_code_and_of_the_measured_row(pipe):
    from crocodil.play.export import recorded_requests
    from crocodil.play.static_page import about

    words = " ".join((ROOT / "docs" / "play.md").read_text().split())
    rows = [
        json.loads(line) for line in (ROOT / "benchmarks" / "rows" / "play-cpu.jsonl").read_text().splitlines()
    ]
    assert {row[name] for row in rows for name in ("sent", "answered", "own_text")} == {600}
    alone, queue, longest = (
        " / ".join(format(row[name], form) for row in rows)
        for name, form in (("seconds_alone", ".3f"), ("longest_queue", "d"), ("seconds_longest", ".1f"))
    )
    runs = len(recorded_requests(about(pipe, "tiny") | {"registers": 64}))
    for fact in (
        f"wait in a queue of at most {MAX_WAITING:,}",
        f"at most {MAX_CHARACTERS:,} characters",
        f"{runs} recorded runs",
        "600 in all. In three of three runs, all requests were answered",
        f"had at most {queue} requests, and the longest answer took {longest} s",
        f"A single request took {alone} s",
    ):
        assert fact in words
    assert sum(file.stat().st_size for file in (ROOT / "docs" / "assets").glob("play-*.webp")) < 300_000


def test_an_existing_folder_is_not_overwritten(tmp_path):
    result = CliRunner().invoke(app, ["play", "--export", str(tmp_path)])
    assert "exists: choose a new folder" in str(result.exception)
    result = CliRunner().invoke(app, ["play", "--export", str(tmp_path / "new"), "--port", "1"])
    assert "leave out --host and --port" in str(result.exception)


def test_ci_goes_on_where_chromium_can_not_be_installed(tmp_path):
    script = [shutil.which("bash"), ROOT / ".ci" / "chromium"]
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True)  # no apt-get there
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no Chromium: the playground is not tested in a browser\n"
