"""What the playground bears: many requests a second against `crocodil play`, and what became of each.

    python benchmarks/play.py --rate 10 --seconds 60

Every request is a short text of the base, so that a CPU can nearly keep up; the others wait in the queue. The row
says how many were answered with the text of their own seed, how long the queue was, and how long an answer took.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

COMMAND = [sys.executable, "-m", "crocodil.cli", "play", "--no-browser", "--port", "0"]


class Result:
    """What became of one request."""

    def __init__(self, seed: int) -> None:
        self.seed, self.text, self.seconds, self.ahead, self.error = seed, None, 0.0, 0, ""


def ask(port: int, result: Result, length: int) -> None:
    body = {"view": "generate", "seed": result.seed, "length": length, "calls": 1, "methods": ["base"]}
    started_at = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", "/api/runs", json.dumps(body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                note(result, json.loads(line[6:]))
    except (OSError, HTTPException) as error:
        result.error = str(error)
    finally:
        connection.close()
    result.seconds = time.perf_counter() - started_at


def note(result: Result, event: dict[str, Any]) -> None:
    if event["event"] == "queue":
        result.ahead = max(result.ahead, event["ahead"])
    elif event["event"] == "text":
        result.text = event["text"]
    elif event["event"] == "error":
        result.error = event["error"]


def load(port: int, *, rate: float, seconds: float, length: int, num_seeds: int) -> list[Result]:
    """Send requests at a steady rate, each on a connection of its own, and wait for all answers."""
    results = [Result(number % num_seeds) for number in range(round(rate * seconds))]
    threads = [threading.Thread(target=ask, args=(port, result, length)) for result in results]
    started_at = time.perf_counter()
    for number, thread in enumerate(threads):
        time.sleep(max(0.0, started_at + number / rate - time.perf_counter()))
        thread.start()
    for thread in threads:
        thread.join()
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--length", type=int, default=16)
    options = parser.parse_args()
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = urlsplit(server.stdout.readline().split()[0]).port
        num_seeds = 20
        alone = [Result(seed) for seed in range(num_seeds)]
        for result in alone:
            ask(port, result, options.length)
        sent = load(port, rate=options.rate, seconds=options.seconds, length=options.length, num_seeds=num_seeds)
        server.terminate()
    waits = sorted(result.seconds for result in sent)
    row = {
        "benchmark": "play",
        "requests_per_second": options.rate,
        "sent": len(sent),
        "answered": sum(result.text is not None for result in sent),
        "own_text": sum(result.text == alone[result.seed].text for result in sent),
        "longest_queue": max(result.ahead for result in sent),
        "seconds_alone": round(statistics.median(result.seconds for result in alone), 3),
        "seconds_median": round(statistics.median(waits), 3),
        "seconds_95": round(waits[int(0.95 * len(waits))], 3),
        "seconds_longest": round(waits[-1], 3),
        "errors": sorted({result.error for result in sent} - {""}),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
